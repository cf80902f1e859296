"""Makes the pictures of README.md: the demo's report and the report of a planned step, as Chromium shows them.

    .venv/bin/python scripts/pictures.py

Writes docs/report.png and docs/plan-report.png. Exit code 1: a program is missing or failed, or a report is wider
than its window.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLAN = ROOT / "target/release/tidelog-plan"
WIDTH = 1200
MARGIN = 16  # under the chart, where the picture ends

MACHINE = {
    "gpus": 1,
    "memory": 80 << 30,
    "verify": 10**12,
    "drives": {"model": "990 PRO 2TB", "count": 4, "shared": True},
    "pcie": {"read": 55 * 10**9, "write": 55 * 10**9},
}

# Runs in the page. The title is the one thing that --dump-dom shows and the page itself does not depend on.
MEASURE = """<script>
document.title = "measured " + [document.documentElement.scrollWidth, innerWidth,
  Math.ceil(document.querySelector(".picture").getBoundingClientRect().bottom)].join(" ");
</script>"""


def main():
    chromium = find("chromium", "chromium-browser", "google-chrome")
    if chromium is None:
        sys.exit("pictures: Chromium is missing; on Debian and Ubuntu: sudo apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="tidelog-pictures-") as folder:
        folder = pathlib.Path(folder)
        shoot(chromium, demo_report(folder), ROOT / "docs/report.png", folder)
        shoot(chromium, plan_report(folder), ROOT / "docs/plan-report.png", folder)


def find(*names):
    return next(filter(None, map(shutil.which, names)), None)


def demo_report(folder):
    page = folder / "demo.html"
    run(sys.executable, ROOT / "demo/demo.py", "--report", page)
    return page


def plan_report(folder):
    machine, trace, page = folder / "machine.json", folder / "trace.json", folder / "plan.html"
    machine.write_text(json.dumps(MACHINE))
    run(PLAN, "record", "mixtral-like", "--python", sys.executable, "--micro-batches", "2", "-o", trace)
    page.write_bytes(run(PLAN, "report", trace, machine, stdout=subprocess.PIPE))
    return page


def shoot(chromium, page, picture, folder):
    """Writes what the page shows down to the end of its chart."""
    measured = folder / "measured.html"
    measured.write_text(page.read_text().replace("</body>", MEASURE + "</body>"))
    title = re.search(r"<title>measured (\d+) (\d+) (\d+)", browse(chromium, measured, 1000, "--dump-dom").decode())
    if title is None:
        sys.exit(f"pictures: {chromium} did not show {page.name}")
    content, window, bottom = map(int, title.groups())
    if content > window:
        sys.exit(f"pictures: {page.name} is {content} pixels wide in a window of {window}: it would have scroll bars")
    browse(chromium, page, bottom + MARGIN, f"--screenshot={picture}")
    if optimizer := find("optipng"):
        run(optimizer, "-quiet", "-o5", "-strip", "all", picture)
    print(f"{picture.relative_to(ROOT)}: {WIDTH} x {bottom + MARGIN}, {picture.stat().st_size // 1000} kB")


def browse(chromium, page, height, action):
    command = [chromium, "--headless", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={WIDTH},{height}", action, page.as_uri()]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")  # Chromium refuses to run as root with it.
    return run(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def run(*command, **streams):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "torch-bridge/python")}
    ended = subprocess.run(command, env=env, check=False, **streams)
    if ended.returncode:
        sys.exit(f"pictures: {command[0]} ended with exit code {ended.returncode}")
    return ended.stdout


if __name__ == "__main__":
    main()
