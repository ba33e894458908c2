"""The initscript engine: WebAssembly guests that fetch a function's inputs while its sandbox is still being set up.

One unprivileged child of the worker (`python -m sockd_initscripts`): an asyncio loop that owns connections, app links and
the lives of runs, and a thread for each guest that runs, which takes its start from the daemon itself. A guest calls the host
functions of `abi.py`; replies are received into shared memory that the function maps read-only. Nothing here is needed for a
function to run: whatever fails is an outcome in a report, and the function reads from the network.

    wire        daemon ↔ engine                        app_link    engine ↔ the function's sandbox
    engine      definitions, runs, admission           run         one run, from start to report
    modules     wasm → checked, compiled, in memory    guest       one guest in its thread; threads: those
    compiled_file: what a module is without loading it
    watched     what threads have the loop listen to   alarm       the deadline of a thread's run
    calls       the host functions                     rpcs, connections, messages, handles, guest_memory: what they act on
    host_functions: how wasmtime calls them
    region      shared memory                          rpc/        the RPC stacks
"""
