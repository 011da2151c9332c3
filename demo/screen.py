# SPDX-License-Identifier: Apache-2.0
"""Progress of several jobs at once: bars redrawn in place on a terminal, sparse lines elsewhere.

Threads may call update and note; one lock keeps the lines whole."""
import sys
import threading
import time

BAR_CELLS = 24
SPARSE_S = 10.0  # without a terminal: a line per job at most this often
REDRAW_S = 0.1


def duration(seconds):
    if seconds is None:
        return "-"
    seconds = int(seconds + 0.5)
    return f"{seconds // 60}:{seconds % 60:02d}"


def count(value):
    return "-" if value is None else f"{value / 1000:.1f}k" if value >= 10000 else f"{value:.0f}"


class Screen:
    def __init__(self, names, out=sys.stdout):
        self.names = names
        self.out = out
        self.live = out.isatty()
        self.lock = threading.Lock()
        self.rows = {name: {"state": "queued"} for name in names}
        self.drawn = False
        self.last = {name: 0.0 for name in names}

    def line(self, name):
        row = self.rows[name]
        step, steps = row.get("step", 0), row.get("steps") or 0
        done = round(BAR_CELLS * step / steps) if steps else 0
        text = f"  {name:<{max(map(len, self.names))}} [{'█' * done}{'·' * (BAR_CELLS - done)}]"
        if not steps:
            return f"{text} {row['state']}"
        loss = row.get("loss")
        unit, rate = ("tok/s", row.get("tokens_per_second")) if row.get("tokens_per_second") else (
            "img/s", row.get("samples_per_second"))
        return (f"{text} {step:>5}/{steps} loss {loss if loss is None else format(loss, '.4f')} "
                f"{count(rate)} {unit} ETA {duration(row.get('eta_s'))} {row['state']}")

    def update(self, name, **values):
        with self.lock:
            row = self.rows[name]
            changed = values.get("state", row["state"]) != row["state"]
            row.update({key: value for key, value in values.items() if value is not None})
            now = time.monotonic()
            if now - self.last[name] < (REDRAW_S if self.live else SPARSE_S) and not changed:
                return
            self.last[name] = now
            if self.live:
                self.draw()
            else:
                print(self.line(name), file=self.out, flush=True)

    def note(self, text):
        with self.lock:
            if self.live and self.drawn:
                self.out.write(f"\x1b[{len(self.names)}A\x1b[J")
                self.drawn = False
            print(text, file=self.out, flush=True)
            if self.live:
                self.draw()

    def draw(self):
        if self.drawn:
            self.out.write(f"\x1b[{len(self.names)}A")
        for name in self.names:
            self.out.write(f"\x1b[2K{self.line(name)}\n")
        self.out.flush()
        self.drawn = True
