"""The demonstration: real functions with real packages, cold and warm, and where the time goes. Run `python -m demo.run`."""
