"""A tab of a headless Chromium, over its DevTools protocol.

Owns one connection and one tab, and what the tab asked for and complained of. Each answer of `/api/state` is kept by its
`now`, so that what is shown can be held against the very answer that it shows.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from contextlib import asynccontextmanager

import aiohttp

UNTIL_S_MAX = 60.0
_KEEP_ANSWERS = """
window.answers = {};
const ask = window.fetch;
window.fetch = async (...asked) => {
  const answer = await ask(...asked);
  if (!answer.ok) return answer;
  const said = await answer.json();
  if (said.now && window.edit) window.edit(said);
  window.answers[said.now ?? "history"] = said;
  return new Response(JSON.stringify(said));
};
"""
_KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40, "PageDown": 34}


class Tab:
    def __init__(self, socket):
        self.requested = []
        self.complaints = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers = {}
        self._session = None

    async def listen(self):
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._note(said["method"], said["params"])

    def _note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method in {"Runtime.exceptionThrown", "Log.entryAdded"} or (
            method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}
        ):
            self.complaints.append(params)

    async def call(self, method, **params):
        number = next(self._numbers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params, **(self._session or {})})
        said = await asyncio.wait_for(answer, UNTIL_S_MAX)
        assert "error" not in said, said
        return said["result"]

    async def open(self, url):
        context = await self.call("Target.createBrowserContext")
        target = await self.call("Target.createTarget", url="about:blank", **context)
        self._session = await self.call("Target.attachToTarget", flatten=True, **target)
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            await self.call(f"{domain}.enable")
        await self.call("Page.addScriptToEvaluateOnNewDocument", source=_KEEP_ANSWERS)
        await self.call("Page.navigate", url=url)
        return target["targetId"]

    async def of(self, expression):
        """Return an expression's value; a promise's, once it is kept."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, condition):
        async with asyncio.timeout(UNTIL_S_MAX):
            while not await self.of(f"Boolean({condition})"):  # noqa: ASYNC110 - seen from outside, by asking
                await asyncio.sleep(0.02)

    async def press(self, key):
        code = {
            "key": key,
            "windowsVirtualKeyCode": _KEYS[key],
            **({"text": {"Enter": "\r"}.get(key, key)} if key in {"Enter", " "} else {}),
        }
        await self.call("Input.dispatchKeyEvent", type="keyDown", **code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    async def type(self, text):
        await self.call("Input.insertText", text=text)

    async def look_like(self, scheme="light", width=1400, height=1000):
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self, path):
        """Write the whole page as a PNG."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def tab(chromium, url):
    """Open a page in a profile of its own, and wait until it shows a state."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(chromium, max_msg_size=0) as socket,
    ):
        opened = Tab(socket)
        listening = asyncio.get_running_loop().create_task(opened.listen())
        try:
            target = await opened.open(url)
            await opened.look_like()
            await opened.until("document.getElementById('as-of')?.dataset.now")
            yield opened
            opened._session = None
            await opened.call("Target.closeTarget", targetId=target)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
