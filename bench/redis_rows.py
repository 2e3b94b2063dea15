"""Rows of bench/run about the store in Redis: what a job costs Redis compared with the scripts of the original design, and how fast jobs
are dispatched. Each row starts its own Redis on loopback, without persistence."""
import statistics

import procs

FLIGHTS = (1, 16, 64, 256)
GOAL_FROM = 64  # in flight; with fewer a call is nearly empty: at 1, three calls of a script that does nothing cost more than the goal
NODES = 50
SESSIONS = 200
KINDS = ("seed", "store", "store-needs", "evalsha", "seed-release", "store-release")
NEEDS_GOAL = 1.3

median = statistics.median


class Redis:
    """An empty Redis of our own, removed afterwards; its data is below root."""

    def __init__(self, appendonly=False, root=None):
        self.dir, self.port = procs.temp_dir(root), procs.free_port()
        program = procs.installed("redis-server", "redis-server")
        self.process = procs.spawn([program, "--port", self.port, "--bind", "127.0.0.1", "--save", "",
                                    "--appendonly", "yes" if appendonly else "no", "--dir", self.dir])
        self.pid = self.process.pid
        procs.wait_port(self.port, self.process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        procs.stop(self.process)
        procs.drop_dir(self.dir)


def measure(program, kind, jobs, flight):
    with Redis() as redis:
        return procs.run_json([program, redis.port, redis.pid, kind, jobs, flight, NODES])


def cost(run, number):
    """Redis CPU for a whole job by the number in flight, alternating between the seed's scripts and ours."""
    program = procs.program(run.binary, "bench_redis")
    reps = 1 if run.quick else 5
    for flight in FLIGHTS:
        jobs = (300 if flight == 1 else 2000) if run.quick else (5000 if flight == 1 else 40000)
        runs = {kind: [] for kind in KINDS}
        for _ in range(reps):
            run.quiet()
            for kind in KINDS:
                runs[kind].append(measure(program, kind, jobs, flight))
        us = {kind: median(r["redis_us"] for r in runs[kind]) for kind in KINDS}
        ratio = median(ours["redis_us"] / seed["redis_us"] for ours, seed in zip(runs["store"], runs["seed"]))
        rate = median(r["per_s"] for r in runs["store"])
        run.say(number, f"whole jobs through Redis, {flight} in flight", f"{rate:,.0f}/s", per_s=rate,
                ops_a_call=median(r["ops_a_call"] for r in runs["store"]),
                p99_us=median(r["p99_us"] for r in runs["store"]))
        run.say(number, "  Redis CPU per job: ours / the seed's scripts", f"{us['store']:.1f} / {us['seed']:.1f} us",
                redis_us=us["store"], seed_us=us["seed"])
        goal = ("<= 0.5", ratio <= 0.5) if flight >= GOAL_FROM else ("", None)
        run.say(number, "  ours over the seed's", f"{ratio:.2f}", *goal, ratio=ratio)
        ratio = median(needs["redis_us"] / plain["redis_us"] for needs, plain in zip(runs["store-needs"], runs["store"]))
        run.say(number, "  with three resources and two keys, over that without", f"{us['store-needs']:.1f} us, {ratio:.2f}",
                f"<= {NEEDS_GOAL}", ratio <= NEEDS_GOAL, redis_us=us["store-needs"], ratio=ratio)
        run.say(number, "  reserve and release: ours / the seed's",
                f"{us['store-release']:.1f} / {us['seed-release']:.1f} us")
        run.say(number, "  three calls of an empty script", f"{us['evalsha']:.1f} us", redis_us=us["evalsha"])


def dispatch(run, number):
    """Whole jobs at a steady rate over HTTP and WebSocket, with the store in Redis on loopback."""
    rate, seconds = (500, 2) if run.quick else (5000, 10)
    with Redis() as redis, run.berth(loops=1, store=f"redis://127.0.0.1:{redis.port}/0") as server:
        run.quiet()
        procs.run_json([run.load, "low", "--port", server.port, "--rate", 200, "--secs", 1])
        before = procs.cpu_s(redis.pid), procs.cpu_s(server.pid)
        low = procs.run_json([run.load, "low", "--port", server.port, "--rate", rate, "--secs", seconds])
        used = procs.cpu_s(redis.pid) - before[0], procs.cpu_s(server.pid) - before[1]
        found = {key: sorted(low[key]) for key in ("start_us", "done_us")}
        jobs = len(found["start_us"])
    for what, key in (("start in the node", "start_us"), ("end in the store", "done_us")):
        p50, p99 = found[key][jobs // 2], found[key][jobs * 99 // 100]
        goal = ("<= 2 / < 5 ms", p50 <= 2000 and p99 < 5000) if key == "start_us" else ("", None)
        run.say(number, f"submit to {what} on Redis at {rate:,}/s, p50 / p99", f"{p50 / 1000:.2f} / {p99 / 1000:.2f} ms",
                goal[0], goal[1], p50_us=p50, p99_us=p99, jobs=jobs)
    run.say(number, "  CPU per job: Redis / server", f"{used[0] / jobs * 1e6:.1f} / {used[1] / jobs * 1e6:.1f} us")


def by_session(figures):
    """The figures by session: jobs come from the sessions in turn."""
    return [figures[i::SESSIONS] for i in range(SESSIONS)]


def sessions(run, number):
    """Whether sessions slow each other down: one session alone alternates with 200 that share the same rate. Each session has its own
    connection, session_id and node on a WebSocket."""
    rate = 500
    reps, seconds = (1, 2) if run.quick else (5, 10)
    alone, shared = [], []
    with Redis() as redis, run.berth(store=f"redis://127.0.0.1:{redis.port}/0") as server:
        low = [run.load, "low", "--port", server.port, "--rate", rate]
        procs.run_json(low + ["--secs", 1, "--sessions", SESSIONS])
        for _ in range(reps):
            for count, found in ((1, alone), (SESSIONS, shared)):
                run.quiet()
                found.append(procs.run_json(low + ["--secs", seconds, "--sessions", count])["start_us"])
    p50, p99 = ([[procs.percentile(one, share) for one in found] for found in (alone, shared)] for share in (.5, .99))
    for what, which in (("1 session", 0), (f"{SESSIONS} sessions", 1)):
        run.say(number, f"submit to start on Redis at {rate}/s, {what}, p50 / p99",
                f"{median(p50[which]) / 1000:.2f} / {median(p99[which]) / 1000:.2f} ms", p50_us=p50[which], p99_us=p99[which])
    for what, found, goal in (("p50", p50, 1.5), ("p99", p99, 2)):
        ratio = median(many / one for one, many in zip(*found))
        run.say(number, f"  {what}, {SESSIONS} sessions over one", f"{ratio:.2f}", f"<= {goal}", ratio <= goal, ratio=ratio)
    # All jobs of each session together: a session that is always slow stands out, a chance delay does not.
    own = [sum(parts, []) for parts in zip(*map(by_session, shared))]
    for what, share, goal in (("median", .5, 1.5), ("p99", .99, None)):
        each = sorted(procs.percentile(one, share) for one in own)
        ratio = each[-1] / median(each)
        run.say(number, f"  the slowest session's {what} over the middle one's", f"{ratio:.2f}", f"<= {goal}" if goal else "",
                ratio <= goal if goal else None, ratio=ratio, jobs_each=len(own[0]))
