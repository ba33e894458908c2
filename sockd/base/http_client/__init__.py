"""HTTP/1.1 as a client: strict answers, kept connections, deadlines and retries, on Python's `http.client`.

The registry client, the chunk store in S3 and the development client of the S3 server use it. Other clients stay apart:

- The initscript engine (`initscripts/rpc`) speaks for guests: on its event loop, with a limit on each of them, and with sockets
  that it hands over to functions in the middle of an exchange.
- A node of the distributed cache (`sockd/images/caches`) sends many requests at once over few connections of its peers.
- Clients of a worker (`sockd/client`) connect to Unix sockets, wait for a worker that starts, and never repeat a call.
- The storage library is installed into functions by their users, without sockd.
"""
