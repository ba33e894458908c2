"""Function URLs: HTTP requests to a function's own hostname become events in AWS's payload format 2.0, and the function's
result an HTTP answer.

`url_api` serves the requests, `event` and `response` convert them, `cors` answers preflights, `names` parses URLs.
`sockd.functions.registry.function_urls` stores them. The code that runs functions knows nothing of URLs.
"""
