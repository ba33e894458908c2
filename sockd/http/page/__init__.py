"""The HTML page at `/`: functions, the Zygote tree, caches, invocations and logs.

It reads the worker through `PageWorker` and `PageSources` and changes nothing, except by test events, each of which invokes a
function once. The server renders the HTML; scripts replace its parts when the server sends new ones, and sort and filter a table.
Text from functions, clients and packages never becomes markup.

    access      who may look
    words       numbers and strangers' text as people read them
    views       the worker's data as the values of templates; `tree_view`, `function_views`, `trace_view`, `failure_views` and
                `event_views`, those of the Zygotes, one function, one invocation, the failures and the queue
    sources     what is read of versions, URLs, schedules and events
    sent_event  a test event: its form, its outcome
    charts      shares and moments as geometry
    rendering   Jinja's environment, loaded with the first page
    boards      parts of a page, rendered anew when their values change
    live        the streams that bring them to open pages
    assets      what is the same for everybody: style, scripts
    responses   HTML, static files and their headers
    page        the application itself
"""
