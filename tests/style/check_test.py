#!/usr/bin/env python3
"""Plants violations in a small tree, and expects that the style check finds each of them and nothing else."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import check  # noqa: E402


class StyleCheck(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        # The tree needs a parent of its own, because paths above the tree count as local paths.
        self.root = Path(self._folder.name) / "parent" / "tree"
        self.root.mkdir(parents=True)

    def write(self, name: str, text: str, readme: str | None = "# What it is\n"):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if readme is not None:
            (path.parent / "README.md").write_text(readme)

    def messages(self) -> list[str]:
        return [str(violation) for violation in check.check_tree(self.root)]

    def assert_found(self, name: str, text: str, expected: str):
        self.write(name, text)
        found = self.messages()
        self.assertEqual(len(found), 1, found)
        self.assertIn(name, found[0])
        self.assertIn(expected, found[0])

    def assert_clean(self, name: str, text: str):
        self.write(name, text)
        self.assertEqual(self.messages(), [])

    def test_finds_every_forbidden_direction(self):
        header = "x.h"
        areas = list(check.MAY_INCLUDE)
        for source in areas:
            for target in areas:
                if target == source or target in check.MAY_INCLUDE[source]:
                    continue
                with self.subTest(source=source, target=target):
                    self.setUp()
                    self.assert_found(f"{source}/a.cc", f'#include "{target}/{header}"\n', "may not include")

    def test_finds_two_types_of_one_name(self):
        space = "#pragma once\nnamespace a {{\n{}\n}}  // namespace a\n"
        self.write("comm/base/a.h", space.format("struct Block {\n};"))
        self.assert_found("worker/client/b.h", space.format("class Block final {\n};"), "a::Block is also a type of comm/base/a.h:3")
        for other in ("struct Block;", "struct Blocks {\n};", "class Block::Impl {\n};", "namespace b {\nstruct Block {\n};\n}  // namespace b",
                      "namespace {\nstruct Block {\n};\n}  // namespace"):  # fmt: skip
            with self.subTest(other=other):
                self.assert_clean("worker/client/b.h", space.format(other))

    def test_finds_the_time_of_day_outside_of_the_log(self):
        for line in ("auto t = absl::Now();", "std::chrono::system_clock::now();", "mutex.AwaitWithTimeout(c, d);",
                     "changed.WaitWithDeadline(&mutex, t);"):  # fmt: skip
            with self.subTest(line=line):
                self.setUp()
                self.assert_found("comm/base/a.cc", line + "\n", "time of day")
        self.setUp()
        self.assert_clean("comm/base/log.cc", "absl::Now();\n")
        self.assert_clean("server/service/a_test.cc", "absl::Now();\n")

    def test_the_table_says_what_the_architecture_says(self):
        allowed = check.MAY_INCLUDE
        self.assertNotIn("worker", allowed["server"])
        self.assertNotIn("server", allowed["worker"])
        self.assertNotIn("comm/transport", allowed["comm/codec"])
        self.assertNotIn("comm/codec", allowed["comm/transport"])
        self.assertEqual(allowed["comm/rpc"], ("comm/base", "comm/job", "proto"))
        for area in check.COMM:
            self.assertFalse({"server", "worker", "cli", "tests"} & set(allowed[area]))

    def test_allows_the_direction_downwards(self):
        self.assert_clean("server/shard/a.cc", '#include "comm/base/status.h"\n#include "server/optimizer/adam.h"\n')

    def test_sees_through_spaces(self):
        self.assert_found("comm/base/a.cc", '  #  include "comm/codec/codec.h"\n', "may not include")

    def test_confines_ucx(self):
        self.assert_found("comm/transport/inproc/a.cc", "#include <ucp/api/ucp.h>\n", "UCX")

    def test_allows_ucx_at_home(self):
        self.assert_clean("comm/transport/ucx/a.cc", "#include <ucp/api/ucp.h>\n#include <ucs/type/status.h>\n")

    def test_confines_nccl(self):
        self.assert_found("comm/collective/ring/a.cc", "#include <nccl.h>\n", "NCCL")

    def test_confines_cuda(self):
        self.assert_found("comm/codec/bf16/a.cc", "#include <cuda_runtime.h>\n", "CUDA")

    def test_allows_cuda_in_any_cuda_folder(self):
        self.assert_clean("comm/codec/cuda/a.cu", "#include <cuda_runtime.h>\n")

    def test_confines_grpc(self):
        self.assert_found("server/shard/a.h", "#pragma once\n#include <grpcpp/grpcpp.h>\n", "gRPC")

    def test_confines_generated_protobuf(self):
        self.assert_found("server/coordinator/a.cc", '#include "proto/job.pb.h"\n', "protobuf")

    def test_allows_generated_protobuf_in_the_service(self):
        self.assert_clean("server/service/a.cc", '#include "proto/job.grpc.pb.h"\n')

    def test_confines_torch(self):
        self.assert_found("worker/client/a.cc", "#include <torch/torch.h>\n", "LibTorch")

    def test_keeps_the_state_machines_pure(self):
        for text in ("#include <thread>\n", "#include <sys/socket.h>\n", '#include "absl/synchronization/mutex.h"\n',
                     "auto t = std::chrono::steady_clock::now();\n", "std::random_device seed;\n",
                     "auto t = absl::Now();\n", "int x = rand();\n"):
            for folder in check.PURE:
                with self.subTest(text=text, folder=folder):
                    self.setUp()
                    self.assert_found(f"{folder}a.cc", text, "pure state machine")

    def test_purity_does_not_bind_tests_or_comments(self):
        self.write("server/shard/a_test.cc", "#include <thread>\n")
        self.assert_clean("server/shard/b.cc", "int x;  // Not steady_clock: time is an input.\nint operand(int);\n")

    def test_finds_a_page_that_nobody_links_to(self):
        self.write("docs/adr/0007-a.md", "# 7\n", readme=None)
        self.write("docs/b.md", "# b\n", readme=None)
        self.write("docs/index.md", "[7](adr/0007-a.md)\n", readme=None)
        self.assertEqual(self.messages(), ["docs/b.md:1: docs/index.md does not link to it: nobody finds it"])

    def test_finds_a_missing_readme(self):
        self.write("comm/base/a.cc", "int x;\n", readme=None)
        self.assertIn("comm/base/README.md:1: missing", self.messages()[0])

    def test_finds_a_long_readme(self):
        self.write("comm/base/a.cc", "int x;\n", readme="line\n" * 91)
        self.assertIn("longer than 90 lines", self.messages()[0])

    def test_finds_a_long_source(self):
        self.assert_found("comm/base/a.cc", "int x;\n" * 501, "split it")

    def test_finds_a_header_without_guard(self):
        self.assert_found("comm/base/a.h", "int x;\n", "#pragma once")

    def test_finds_unfinished_work(self):
        self.assert_found("comm/base/a.cc", "// TO" + "DO: later\n", "finish it")

    def test_finds_the_path_of_the_checkout_and_of_the_folder_above(self):
        for place in (self.root, self.root.parent):
            with self.subTest(place=place):
                self.assert_found("docs/a.md", f"see {place.resolve()}/thing\n", "workplace")

    def test_finds_a_home_folder(self):
        self.assert_found("docs/a.md", "see /ho" + "me/alice/thing\n", "workplace")

    def test_leaves_other_absolute_paths(self):
        self.assert_clean("docs/a.md", "see /usr/local/cuda and /tmp/x and https://example.org/home/alice/x\n")


if __name__ == "__main__":
    unittest.main()
