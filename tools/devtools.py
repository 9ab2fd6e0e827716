"""A headless Chromium, driven by the DevTools protocol over a pipe: Python's standard library is enough."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find():
    """The program, or None."""
    for name in "chromium", "chromium-browser", "google-chrome":
        if path := shutil.which(name):
            return path
    return None


class Browser:
    """One page. `console` collects its errors and warnings."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="cifar_mpi_browser_")
        self.console, self.count, self.rest = [], 0, b""
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        # Chromium refuses to run its sandbox as root
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, "--headless", *sandbox, "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]

        def take_pipes():  # the protocol uses descriptors 3 and 4
            high_in, high_out = os.dup2(to_browser, 60), os.dup2(from_browser, 61)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self.process = subprocess.Popen(command, preexec_fn=take_pipes, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        self.session = None
        try:
            targets = self.call("Target.getTargets")["targetInfos"]
        except OSError as error:
            self.close()
            needs = "" if sandbox else "; its sandbox needs user namespaces: see /proc/sys/user/max_user_namespaces"
            raise OSError(f"{program} does not start: {error}{needs}") from error
        target = next(t for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log":
            self.call(domain + ".enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # as if the window were in front

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (TimeoutError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def message(self, limit_s):
        end = time.monotonic() + limit_s
        while b"\0" not in self.rest:
            if not select.select([self.read_end], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.read_end, 1 << 16)
            if not part:
                raise TimeoutError("the browser has exited")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        if message.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(message["params"]["exceptionDetails"]))
        if message.get("method") in ("Runtime.consoleAPICalled", "Log.entryAdded"):
            self.console.append(json.dumps(message["params"]))
        return message

    def call(self, method, **params):
        self.count += 1
        order = {"id": self.count, "method": method, "params": params}
        if self.session:
            order["sessionId"] = self.session
        os.write(self.write_end, json.dumps(order).encode() + b"\0")
        while True:
            message = self.message(60)
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, path, width, height, dark=False, scale=1, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while self.message(60).get("method") != "Page.loadEventFired":
            pass

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def point_at(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def touch_at(self, x, y):
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key):
        for kind in "rawKeyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, whole=True, clip=None):
        """The bytes of a PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **({"clip": clip} if clip else {}))
        return base64.b64decode(picture["data"])
