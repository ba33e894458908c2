"""The HTML page at `/`: functions, the Zygote tree, caches, invocations and logs.

It reads the worker through `sockd.http.worker` and `PageSources`. Test events invoke a function once, and `changes` are what
little can be changed. The server renders the HTML; scripts replace its parts when the server sends new ones, and sort and filter
a table. Text from functions, clients and packages never becomes markup.

    access      who may look
    words       numbers and strangers' text as people read them
    views       the worker's data as the values of templates; `tree_view`, `function_views`, `trace_view`, `failure_views` and
                `event_views`, those of the Zygotes, one function, one invocation, the failures and the queue; `history_views`,
                the last hour
    sources     what is read of versions, URLs, schedules and events
    sent_event  a test event: its form, its outcome
    changes     retry, rollback, disabling and enabling: their buttons, their outcomes
    forms       reading what browsers send
    charts      shares and moments as geometry
    rendering   Jinja's environment, loaded with the first page
    parts       which live parts a page has; the tabs of a function's page
    boards      parts of a page, rendered anew when their values change
    live        the streams that bring them to open pages
    assets      what is the same for everybody: style, scripts
    responses   HTML, static files and their headers
    page        the application itself
"""
