"""Parts of the benchmark `images`: each measures one thing into its result."""
