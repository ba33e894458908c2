"""What people see of a worker: logs, traces, the page."""
