"""Image recognition: a picture and a network from storage, one class out. The order of the reads is that of SeBS's 411.

With MODEL_BUCKET and MODEL_KEY in its environment the init loads the network, so that a snapshot holds it.
"""

import datetime
import io
import os

import numpy
import onnxruntime
from function import storage
from PIL import Image

client = storage.storage.get_instance()

SIDE = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
session = None


def load(bucket, key):
    """Fetch the network and make a session of it; (microseconds of the one, of the other)."""
    global session
    begin = datetime.datetime.now()
    model = client.download_stream(bucket, key)
    fetched = datetime.datetime.now()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(bytes(model), options, providers=["CPUExecutionProvider"])
    return microseconds(fetched - begin), microseconds(datetime.datetime.now() - fetched)


def handler(event):
    bucket, names = event["bucket"], event["object"]
    image_begin = datetime.datetime.now()
    image = client.download_stream(bucket["bucket"], os.path.join(bucket["input"], names["input"]))
    image_end = datetime.datetime.now()

    model_download_time = model_time = 0.0
    if session is None:
        model_download_time, model_time = load(bucket["bucket"], os.path.join(bucket["model"], names["model"]))

    process_begin = datetime.datetime.now()
    (scores,) = session.run(None, {"image": pixels(image)})
    index = int(scores[0].argmax())
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
    """The middle of a picture as the network wants it."""
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (2 * SIDE, 2 * SIDE))
    image = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    values = (numpy.asarray(image, dtype=numpy.float32) / 255 - MEAN) / DEVIATION
    return values.astype(numpy.float32).transpose(2, 0, 1)[numpy.newaxis]


def microseconds(duration):
    return duration / datetime.timedelta(microseconds=1)


if "MODEL_BUCKET" in os.environ:
    load(os.environ["MODEL_BUCKET"], os.environ["MODEL_KEY"])
