"""`imgrec` and `imgrec-wasm`: image recognition in the style of SeBS's 411, without torch. The other files run in the sandbox."""
