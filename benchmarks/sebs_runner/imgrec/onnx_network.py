"""A network that is an ONNX file, on onnxruntime."""

import numpy
import onnxruntime


def load(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def classify(session, pixels):
    (scores,) = session.run(None, {"image": numpy.ascontiguousarray(pixels.transpose(2, 0, 1)[numpy.newaxis])})
    return int(scores[0].argmax())
