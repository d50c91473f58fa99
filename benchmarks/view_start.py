"""Time from the command `lgq view` to its page, and to the first picture with its reconstruction.

    python benchmarks/view_start.py [RUN ...]       # the shipped tokenizer, on the embedded photographs

The exit code is 1 if the picture takes 5 seconds or more.
"""

import json
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

LIMIT = 5.0
PICTURE = "api/encoding?model=0&picture=0&size=256"


def main() -> None:
    began = time.perf_counter()
    command = [sys.executable, "-m", "lgq", "view", *sys.argv[1:], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        assert program.stdout is not None
        (address,) = (word for word in program.stdout.readline().split() if word.startswith("http"))
        page = wait_for(address, began)
        picture = wait_for(address + PICTURE, began)
        program.terminate()
    print(json.dumps({"page": round(page, 2), "picture": round(picture, 2)}))
    sys.exit(picture >= LIMIT)


def wait_for(address: str, began: float) -> float:
    """Ask until there is an answer; return the seconds until then."""
    while True:
        try:
            with urlopen(address) as answer:
                answer.read()
                if answer.status == 200:
                    return time.perf_counter() - began
        except URLError:
            pass  # the server does not listen yet
        time.sleep(0.02)


if __name__ == "__main__":
    main()
