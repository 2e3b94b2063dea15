"""The README's tour gives what it prints."""
import re

import readme
from harness import ROOT, Case, calm_machine, eventually


class Readme(Case):
    def test_tour(self):
        text = readme.readme()
        found = readme.blocks(text)
        self.assertGreater(len(found), 3, "README.md has no tour")
        server = self.start(verb="dev", env={"BERTH_HOST_ROOT": calm_machine(self.dir)})
        eventually("the agent is there", lambda: server.get("/v1/nodes").json["nodes"])
        known = {}
        bash = readme.Shell(server.port, ROOT)
        self.addCleanup(bash.close)
        for line, shell, expected in found:
            got = bash.run(shell, known)
            if expected is None:
                continue
            match = readme.pattern_of(expected, known).fullmatch(got.strip())
            self.assertTrue(match, f"README.md:{line}\n{shell}\nexpected:\n{expected}\ngot:\n{got}")
            known.update(match.groupdict())

    def test_the_comparison_can_fail(self):
        """The checker itself: a placeholder is bound once, other text must match."""
        known = {"job_id": "j1"}
        match = readme.pattern_of('{"job_id":"<job_id>","node_id":"<node_id>"}', known)
        self.assertTrue(match.fullmatch('{"job_id":"j1","node_id":"n7"}'))
        self.assertFalse(match.fullmatch('{"job_id":"j2","node_id":"n7"}'))
        self.assertFalse(match.fullmatch('{"job_id":"j1","node_id":"n 7"}'))
        self.assertTrue(readme.pattern_of("HTTP/1.1 503 ...\nx", {}).fullmatch("HTTP/1.1 503 Service\nx"))

    def test_files_the_readme_names_exist(self):
        for name in re.findall(r"\]\((?!https?:|#)([^)#]+)", readme.readme()):
            self.assertTrue((ROOT / name).exists(), f"README.md points to {name}")
