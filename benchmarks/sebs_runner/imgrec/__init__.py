"""`imgrec`: image recognition in the style of SeBS's 411, on onnxruntime instead of torch. `function.py` runs in the sandbox."""
