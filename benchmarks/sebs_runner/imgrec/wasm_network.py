"""A network that is a WebAssembly module, on wasmtime."""

import wasmtime


def load(model):
    store = wasmtime.Store(wasmtime.Engine())
    return store, wasmtime.Instance(store, wasmtime.Module(store.engine, model), []).exports(store)


def classify(loaded, pixels):
    store, exports = loaded
    exports["memory"].write(store, pixels.tobytes(), exports["image"](store))
    return exports["classify"](store)
