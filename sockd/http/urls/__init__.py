"""The door of function URLs: any HTTP request to a name of its own becomes AWS's payload 2.0, and what the function returns an
HTTP answer.

`door` takes the requests, `event` and `response` are the two mappings, `cors` what browsers ask for, `names` what a URL looks
like. Which URLs there are is kept by `sockd.registry.function_urls`. What runs a function does not know of URLs.
"""
