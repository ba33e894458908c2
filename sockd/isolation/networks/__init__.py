"""Networks of functions: endpoints made ahead, the router between them and the host, what each function may reach."""
