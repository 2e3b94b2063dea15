"""The README's five minutes, typed by users who have just logged in: there is no unit, and nothing was delegated to them."""
from case import Case


class Tour(Case):
    def tour(self, user):
        typed = self.run_as(user, "python3 /mnt/tour.py /mnt/checkout", limit_s=600)
        self.assertGreater(typed.count(" typed\n"), 5)
        # No process is left, and the session's group is an ordinary one.
        self.eventually("no process of berth is left", lambda: self.vm.run("pgrep --full 'berth (dev|shim|agent)'").code == 1)
        self.assertEqual(self.run_as(user, "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cgroup.type"), "domain\n")

    def test_as_root(self):
        self.tour("root")

    def test_as_a_user(self):
        self.tour("someone")
