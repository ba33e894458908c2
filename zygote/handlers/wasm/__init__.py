"""WebAssembly functions: their modules and components, served by the runtime in the function's own sandbox."""
