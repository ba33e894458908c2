"""Image recognition: a picture and a network from storage, one class out. The order of the reads is that of SeBS's 411.

With MODEL_BUCKET and MODEL_KEY in its environment the init loads the network, so that a snapshot holds it. `network.py` is what
runs it: `onnx_network.py` or `wasm_network.py`.
"""

import datetime
import io
import os

import numpy
from function import network, storage
from PIL import Image

client = storage.storage.get_instance()

SIDE = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
loaded = None


def load(bucket, key):
    """Fetch the network and load it; (microseconds of the one, of the other)."""
    global loaded
    begin = datetime.datetime.now()
    model = client.download_stream(bucket, key)
    fetched = datetime.datetime.now()
    loaded = network.load(bytes(model))
    return microseconds(fetched - begin), microseconds(datetime.datetime.now() - fetched)


def handler(event):
    bucket, names = event["bucket"], event["object"]
    image_begin = datetime.datetime.now()
    image = client.download_stream(bucket["bucket"], os.path.join(bucket["input"], names["input"]))
    image_end = datetime.datetime.now()

    model_download_time = model_time = 0.0
    if loaded is None:
        model_download_time, model_time = load(bucket["bucket"], os.path.join(bucket["model"], names["model"]))

    process_begin = datetime.datetime.now()
    index = network.classify(loaded, pixels(image))
    process_end = datetime.datetime.now()

    return {
        "result": {"idx": index, "class": f"class {index}"},
        "measurement": {
            "download_time": microseconds(image_end - image_begin) + model_download_time,
            "compute_time": microseconds(process_end - process_begin) + model_time,
            "model_time": model_time,
            "model_download_time": model_download_time,
        },
    }


def pixels(data):
    """The middle of a picture as the network wants it: rows, columns, colours."""
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (2 * SIDE, 2 * SIDE))
    image = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return ((numpy.asarray(image, dtype=numpy.float32) / 255 - MEAN) / DEVIATION).astype(numpy.float32)


def microseconds(duration):
    return duration / datetime.timedelta(microseconds=1)


if "MODEL_BUCKET" in os.environ:
    load(os.environ["MODEL_BUCKET"], os.environ["MODEL_KEY"])
