#!/usr/bin/env python3
"""The tables and the plot of bench/run --peers. The figures are kept in docs/benchmarks.json; README.md, docs/benchmarks.md and
docs/benchmarks.svg are made from them and from the rows of peers.py. In pages only the text between marks is replaced.

  bench/report.py [ROOT]    makes them again from the kept figures (in this checkout)"""
import html
import json
import math
import os
import re
import sys

sys.dont_write_bytecode = True
import peers  # noqa: E402

MARK = re.compile(r"(?P<begin><!-- bench: (?P<name>\w+) -->\n).*?(?P<end><!-- bench: end -->)", re.S)


def measured(figures):
    return [peer for peer in peers.PEERS if figures["peers"].get(peer.key, {}).get("runs")]


def label(figures, peer, mark="`"):
    name = peer.name.format(version=figures["peers"][peer.key]["version"], redis=figures["redis"])
    return name.replace("`", mark)


def rounded(value):
    """Rounds to two significant digits."""
    digits = max(0, int(math.floor(math.log10(value))) - 1) if value > 0 else 0
    return round(value / 10 ** digits) * 10 ** digits


def rate(figures, peer, conc):
    least, middle, most = (f"{rounded(value):,}" for value in peers.spread(figures, peer.key, str(conc), "per_s"))
    return f"{middle} ({least}-{most})"


def cpu(figures, peer, conc, *who):
    return sum(peers.spread(figures, peer.key, str(conc), f"{one}_us")[1] for one in who)


def ms(figures, peer, what):
    p50, p99 = (peers.spread(figures, peer.key, "low", f"{what}_p{share}_us")[1] / 1000 for share in (50, 99))
    return f"{p50:.2f} / {p99:.2f}"


def table(columns, rows):
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def bold(figures, peer):
    name = label(figures, peer)
    return re.sub(r"^berth\b", "**berth**", name) if peer.ours else name


def short_table(figures):
    few, many = peers.CONCS
    columns = ["", "an accepted job is on disk", f"whole jobs/s, {few} outstanding", f"{many:,} outstanding",
               f"submit to done at {peers.RATE}/s, p50 / p99", "CPU of the server for a job"]
    rows = [[bold(figures, peer), peer.on_disk, rate(figures, peer, few), rate(figures, peer, many),
             f"{ms(figures, peer, 'done')} ms", f"{cpu(figures, peer, few, 'server'):.0f} us"] for peer in measured(figures)]
    return table(columns, rows) + (caveat(figures) and f"\n{caveat(figures).strip()}\n")


def whole_table(figures):
    few, many = peers.CONCS
    columns = ["", "an accepted job is on disk", "a job is done when", f"jobs/s, {few} outstanding", f"{many:,} outstanding",
               f"CPU of the server for a job at {few} / {many:,}, us", "of the bench, us", "submit to start, p50 / p99, ms",
               "submit to done, p50 / p99, ms"]

    def both(peer, *who):
        return " / ".join(f"{cpu(figures, peer, conc, *who):.0f}" for conc in peers.CONCS)

    return table(columns, [[bold(figures, peer), peer.on_disk, peer.done, rate(figures, peer, few), rate(figures, peer, many),
                            both(peer, "server"), both(peer, "submit", "worker"), ms(figures, peer, "start"), ms(figures, peer, "done")]
                           for peer in measured(figures)])


def caveat(figures):
    """A warning for figures that were measured while the machine did other work, else an empty text."""
    if figures["other_work"] <= 0.1:
        return ""
    return (f" **Other work kept up to {figures['other_work']:.0%} of the machine busy meanwhile (load {figures['machine']['load']:.0f}, "
            f"{figures['date']}): these figures show what is measured, not what is true of a quiet machine.**")


def circumstances(figures):
    machine, disk = figures["machine"], figures["disk"]
    kind = " in a virtual machine" if machine["virtual"] else ""
    rates = [rounded(one["per_s"]) for one in disk]
    text = (f"Measured on {figures['date']}: {machine['cpu']}, {machine['cores']} cores{kind}, Linux {machine['kernel']}, "
            f"{machine['filesystem']}. In the same run the disk made {min(rates):,}-{max(rates):,} writes of 4 KiB durable a second, one "
            f"after the other (`fdatasync`; p50 {peers.median(one['p50_us'] for one in disk) / 1000:.2f} ms, p99 "
            f"{max(one['p99_us'] for one in disk) / 1000:.2f} ms).")
    failed = [f" {peer.key} could not be measured: {figures['peers'][peer.key]['error']}." for peer in peers.PEERS
              if "error" in figures["peers"].get(peer.key, {})]
    return text + "".join(failed) + caveat(figures) + "\n"


def commits(figures):
    """Our latency compared with the commits it consists of."""
    done, commit = ([peers.spread(figures, "berth", "low", f"{what}_p{share}_us")[1] / 1000 for share in (50, 99)] for what in ("done", "commit"))
    return (f"While {peers.RATE} jobs a second were submitted, a commit of the journal (one write, one `fdatasync`) took {commit[0]:.2f} ms at p50 and "
            f"{commit[1]:.2f} ms at p99 (`berth_store_commit_seconds`), and submit to done {done[0]:.2f} and {done[1]:.2f} ms: {done[0] / commit[0]:.1f} "
            f"and {done[1] / commit[1]:.1f} times as long.\n")


# ------------------------------------------------------------------------------------ the plot

ROW, TOP, LEFT, PANEL, GAP = 30, 64, 316, 190, 36


def points(figures, peer):
    """For each panel: [(class, least, middle, most)]."""
    few, many = (str(conc) for conc in peers.CONCS)
    key = peer.key
    done = [peers.spread(figures, key, "low", f"done_p{share}_us")[1] / 1000 for share in (50, 99)]
    return [[("few", *peers.spread(figures, key, few, "per_s")), ("many", *peers.spread(figures, key, many, "per_s"))],
            [("few", done[0], done[0], done[1])],
            [("few", *peers.spread(figures, key, few, "server_us")), ("many", *peers.spread(figures, key, many, "server_us"))]]


def tick(power):
    for unit, thousand in (("M", 6), ("k", 3)):
        if power >= thousand:
            return f"{10 ** (power - thousand)}{unit}"
    return f"{10.0 ** power:g}"


def svg(figures):
    """A row for each server and a panel for each figure, all on a logarithmic scale. A dot is the median of the repetitions (for a latency:
    p50), a line goes from the least to the most (for a latency: to p99). It has its own background, light or dark by the reader's
    preference."""
    few, many = peers.CONCS
    titles = ["whole jobs a second", f"submit to done at {peers.RATE}/s, ms", "CPU of the server for a job, us"]
    rows = [(peer, points(figures, peer)) for peer in measured(figures)]
    width, height = LEFT + len(titles) * (PANEL + GAP), TOP + ROW * len(rows) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           "<title>berth and its peers: jobs a second, latency, CPU of the server</title>",
           "<style>.page{fill:#ffffff}text{font:12px system-ui,sans-serif;fill:#24292f}.dim{fill:#57606a}.ours{font-weight:600}.grid{stroke:#d0d7de}"
           ".few{stroke:#0969da;fill:#0969da}.many{stroke:#bc4c00;fill:#bc4c00}@media(prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}"
           ".dim{fill:#9198a1}.grid{stroke:#3d444d}.few{stroke:#58a6ff;fill:#58a6ff}.many{stroke:#f0883e;fill:#f0883e}}</style>",
           '<rect class="page" width="100%" height="100%" rx="6"/>',
           f'<circle class="few" cx="{LEFT + 6}" cy="14" r="4"/><text x="{LEFT + 16}" y="18">{few} outstanding, or {peers.RATE}/s</text>',
           f'<circle class="many" cx="{LEFT + 206}" cy="14" r="4"/><text x="{LEFT + 216}" y="18">{many:,} outstanding</text>']
    for number, title in enumerate(titles):
        left = LEFT + number * (PANEL + GAP)
        values = [value for _, panels in rows for point in panels[number] for value in point[1:]]
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        high = max(high, low + 1)

        def x(value, left=left, low=low, high=high):
            return left + (math.log10(value) - low) / (high - low) * PANEL

        out.append(f'<text x="{left}" y="42">{title}</text>')
        for power in range(low, high + 1):
            at = x(10 ** power)
            out.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP - 10}" x2="{at:.1f}" y2="{height - 26}"/>')
            out.append(f'<text class="dim" x="{at:.1f}" y="{height - 10}" text-anchor="middle">{tick(power)}</text>')
        for index, (_, panels) in enumerate(rows):
            lanes = len(panels[number])
            for lane, (kind, least, middle, most) in enumerate(panels[number]):
                y = TOP + ROW * index + ROW / 2 - 7 + (lane - (lanes - 1) / 2) * 9
                out.append(f'<line class="{kind}" stroke-width="2" x1="{x(least):.1f}" y1="{y:.1f}" x2="{x(most):.1f}" y2="{y:.1f}"/>')
                out.append(f'<circle class="{kind}" cx="{x(middle):.1f}" cy="{y:.1f}" r="4"/>')
    for index, (peer, _) in enumerate(rows):
        kind = ' class="ours"' if peer.ours else ""
        out.append(f'<text{kind} x="{LEFT - 14}" y="{TOP + ROW * index + ROW / 2 - 3}" text-anchor="end">'
                   f"{html.escape(label(figures, peer, ''))}</text>")
    return "\n".join([*out, "</svg>", ""])


# ------------------------------------------------------------------------------------ the files

PARTS = {"short": short_table, "whole": whole_table, "circumstances": circumstances, "commits": commits}


def filled(text, figures):
    """The page with the text between marks made anew."""
    return MARK.sub(lambda found: found["begin"] + PARTS[found["name"]](figures) + found["end"], text)


def pages(root, figures):
    """{path: its new contents}"""
    made = {os.path.join(root, "docs", "benchmarks.svg"): svg(figures)}
    for path in (os.path.join(root, "README.md"), os.path.join(root, "docs", "benchmarks.md")):
        with open(path) as file:
            made[path] = filled(file.read(), figures)
    return made


def kept(root):
    with open(os.path.join(root, "docs", "benchmarks.json")) as file:
        return json.load(file)


def write(root, figures):
    made = {os.path.join(root, "docs", "benchmarks.json"): json.dumps(figures, indent=1) + "\n", **pages(root, figures)}
    for path, text in made.items():
        with open(path, "w") as file:
            file.write(text)


if __name__ == "__main__":
    ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    write(ROOT, kept(ROOT))
