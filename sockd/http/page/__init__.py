"""The page at `/`: functions, the Zygote tree, caches, invocations and logs, for people with a browser.

It reads the worker through `PageWorker` and changes nothing: no request of the page has an effect. HTML is made here, on the
server, from the worker's data; scripts only exchange its parts when the server sends new ones. Everything that a function, a
client or a package made up is text to it, never markup.

    access      who may look
    words       numbers and strangers' text as people read them
    views       the worker's data as the values of templates; `function_views` and `trace_view`, one function's, one invocation's
    charts      shares and moments as geometry
    rendering   Jinja's environment, loaded with the first page
    boards      parts of a page, rendered anew when their values change
    live        the streams that bring them to open pages
    assets      what is the same for everybody: style, scripts
    page        the application itself
"""
