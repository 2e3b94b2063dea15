"""Control groups of runs when berth was started by hand: in a session, and in the way that its own warning suggests."""
import re
import shlex

from case import Case

# Runs in a session: berth dev, a job, and what the job sees of its own group. The measured machine is a simulated idle one, because an
# emulated one is not idle.
SCRIPT = r"""
cd $(mktemp -d)
export BERTH_HOST_ROOT=$(python3 -c '
import pathlib, sys
sys.path.insert(0, "/mnt/checkout/tests/e2e")
from harness import calm_machine
print(calm_machine(pathlib.Path.cwd()))')
own=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)
PREFIX /mnt/checkout/build/berth dev > log 2>&1 &
dev=$!
until grep -q event=agent.connected log; do kill -0 $dev || { cat log; exit 1; }; sleep 0.2; done
berth=/mnt/checkout/build/berth
job=$($berth job submit --queue 100s --wait 100s -- sh -c 'cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); pwd; cat cgroup.type cgroup.controllers')
$berth job logs $job | sed 's/^/job /'
echo "own $(cat $own/cgroup.type) ($(cat $own/cgroup.subtree_control))"
grep event=agent.limits_missing log || true
grep -o event=agent.jobs_not_apart log || true
pkill -INT -P $$ -f 'berth dev' || kill -INT $dev
wait $dev || true
"""


class ByHand(Case):
    def dev(self, user, prefix=""):
        return self.run_as(user, "bash -ec " + shlex.quote(SCRIPT.replace("PREFIX", prefix)), limit_s=300)

    def check(self, user, command):
        plain = self.dev(user)
        self.assertIn("own domain ()", plain, "the session's group must not be changed")
        # An agent that cannot run work as another user logs that once.
        self.assertEqual(plain.count("event=agent.jobs_not_apart"), 0 if user == "root" else 1, plain)
        self.assertIn(f'try="{command} berth ..."', plain)
        delegated = self.dev(user, re.search(r'try="(.*) berth', plain).group(1))
        self.assertNotIn("limits_missing", delegated)
        self.assertRegex(delegated, r"job /sys/fs/cgroup/.*\.scope/berth-\w+/j\w+\.1\njob domain\n")
        for controller in ("memory", "pids", "cpu"):
            self.assertRegex(delegated, rf"job .*\b{controller}\b")
        return plain

    def test_root(self):
        self.assertRegex(self.check("root", "systemd-run --scope -p Delegate=yes"), r"job /sys/fs/cgroup/.*/berth-\w+/j\w+\.1\njob domain\n")

    def test_somebody(self):
        self.check("someone", "systemd-run --user --scope -p Delegate=yes")
