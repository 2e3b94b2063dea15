"""berth as its package installs it: users, units, settings; jobs and deployments under restarts, kills, upgrades and reboots."""
from case import Installed


class Units(Installed):
    def test_the_package_is_whole(self):
        self.assertEqual(self.sh("systemctl is-active berth-server berth-agent").split(), ["active", "active"])
        self.assertEqual(self.sh("systemd-analyze verify --man=no berth-server.service berth-agent.service 2>&1 | grep -i berth || true"), "")
        self.assertIn("berth", self.sh("id berth && id berth-agent"))

    def test_a_job(self):
        job = self.ended(self.submit("id -un; exit 3", max_attempts=1))
        self.assertEqual((job["state"], job["reason"]), ("FAILED", "EXIT_3"))
        job = self.ended(self.submit("id -un"))
        self.assertEqual(job["result"]["tail"], "berth-agent\n", job)
