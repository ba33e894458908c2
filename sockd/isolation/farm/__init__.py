"""What forks sandboxes: the farm, its Zygotes, their uids, and the networks of walled ones.

A farm is one mount namespace and one pid namespace for all processes that run user code with one interpreter."""
