"""The compiled tests of control groups and of runs in them, on a machine where groups with limits can be made. With BERTH_TEST_GROUPS they
fail where they would be skipped on the machine that runs `make test`."""
from case import Case


class Compiled(Case):
    def compiled(self, name):
        """Runs the test in a service that has a delegated group."""
        done = self.vm.run("systemd-run --quiet --wait --collect --pipe --property Delegate=yes --setenv CMOCKA_MESSAGE_OUTPUT=TAP --setenv HOME=/root "
                           f"--setenv BERTH_TEST_GROUPS=1 /mnt/unit/test_{name}", limit_s=600)
        text = done.out + done.err
        self.assertEqual(done.code, 0, text)
        self.assertRegex(text, r"(?m)^ok 1")
        self.assertNotRegex(text, r"(?mi)^not ok|# skip")

    def test_cgroup(self):
        self.compiled("cgroup")

    def test_run(self):
        self.compiled("run")

    def test_spawner(self):
        self.compiled("spawner")
