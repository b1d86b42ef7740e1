#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of llama-server with a packed history: preload_clients_test.py PRELOAD LLAMA_BIN [TEST...].

Answers that a JSON schema asks for, and arguments of tools, keep it, fifty of fifty each; curl and the openai package both stream. A real
model (TERSEKV_TEST_MODEL, or where scripts/setup.sh puts it); the package is found in the Python that
scripts/lib.sh's clients_venv names, or in TERSEKV_TEST_CLIENTS_PYTHON.
"""
import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import sys
import unittest

import preload

SO, LLAMA_BIN = sys.argv[1], sys.argv[2]
del sys.argv[1:3]
SERVER = f"{LLAMA_BIN}/llama-server"
preload.need(SO, SERVER, preload.MODEL)

SCHEMA = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 20}, "kind": {"enum": ["cat", "dog", "bird"]},
    "age": {"type": "integer", "minimum": 0, "maximum": 40},
    "colours": {"type": "array", "items": {"enum": ["black", "white", "grey", "green"]}, "minItems": 1, "maxItems": 3}},
    "required": ["name", "kind", "age", "colours"], "additionalProperties": False}

SYSTEM = "You answer about animals. " + preload.TEXT[:1600]  # longer than the raw window, and reused from slot to request

# Calls that went before: a small model makes one because it has seen some. What it then writes is the grammar's.
CALLS = [({"name": "Tom", "kind": "cat", "age": 12, "colours": ["black"]}, "Tom, an old cat of 12 years"),
         ({"name": "Kiki", "kind": "bird", "age": 2, "colours": ["green", "white"]}, "a bird of 2 years, Kiki"),
         ({"name": "Minka", "kind": "cat", "age": 7, "colours": ["grey"]}, "a grey cat of 7 years, Minka")]
CALLED = [message for i, (value, what) in enumerate(CALLS) for message in (
    {"role": "user", "content": f"Number {i + 100}: tell me about {what}."},
    {"role": "assistant", "content": "", "tool_calls": [{"id": f"call{i}", "type": "function", "function": {
        "name": "note_animal", "arguments": json.dumps(value)}}]})]

OPENAI_CLIENT = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=240)
ask = dict(model="any", messages=[{"role": "user", "content": "Name three animals."}], max_tokens=24, temperature=0)
whole = client.chat.completions.create(**ask)
parts, usage, ends = [], None, []
for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        parts.append(choice.delta.content or "")
        ends.append(choice.finish_reason)
print(json.dumps({"models": [m.id for m in client.models.list().data], "whole": whole.choices[0].message.content,
                  "streamed": "".join(parts), "pieces": sum(map(bool, parts)), "ends": [e for e in ends if e],
                  "tokens": usage.completion_tokens}))
"""


def openai_python():
    name = os.environ.get("TERSEKV_TEST_CLIENTS_PYTHON")
    listed = (preload.ROOT / "tests/hosts/requirements.txt").read_bytes()
    return name or preload.CACHE / f"venv-clients-{hashlib.sha256(listed).hexdigest()[:8]}/bin/python"


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = preload.Server(SERVER, preload.MODEL, ["-c", 8192, "-np", 4, "-kvu", "-b", 512, "-ub", 512, "--jinja", "--chat-template-file",
                                                             preload.ROOT / "tests/hosts/chat_with_tools.jinja"],
                                    preload.environment(SO, "k4v4")).__enter__()
        cls.addClassCleanup(cls.server.__exit__)
        assert "packed as k4v4" in cls.server.said(), cls.server.said()[-2000:]

    def fifty(self, ask):
        """What ask(prompt) gives for fifty different prompts, four at a time."""
        whats = ("an old cat", "a young dog", "a green bird", "a grey cat that sleeps", "two black dogs")
        prompts = [f"Number {i}: tell me about {whats[i % 5]} of {i % 17} years, {name}."
                   for i, name in enumerate(["Tom", "Rex", "Kiki", "Minka", "Bello", "Coco", "Felix"] * 7 + ["Lola"])]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, prompts))
        self.assertEqual(len(answers), 50)
        self.assertGreater(len({json.dumps(a) for a in answers}), 5)  # the model chose something

    def chat(self, prompt, before=(), **more):
        answer = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "system", "content": SYSTEM}, *before, {"role": "user", "content": prompt}],
            "max_tokens": 200, "temperature": 0, **more})
        self.assertNotIn("error", answer)
        return answer["choices"][0]

    def valid(self, value, schema):
        self.assertEqual(set(value), set(schema["properties"]))
        for name, kind in schema["properties"].items():
            items = value[name] if kind.get("type") == "array" else [value[name]]
            if kind.get("type") == "array":
                self.assertTrue(kind["minItems"] <= len(items) <= kind["maxItems"])
                kind = kind["items"]
            for item in items:
                if "enum" in kind:
                    self.assertIn(item, kind["enum"])
                elif kind["type"] == "integer":
                    self.assertIs(type(item), int)
                    self.assertTrue(kind["minimum"] <= item <= kind["maximum"])
                else:
                    self.assertTrue(isinstance(item, str) and len(item) <= kind["maxLength"])

    def test_json_schema_fifty_of_fifty(self):
        def schema(prompt):
            choice = self.chat(prompt, response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}})
            self.assertEqual(choice["finish_reason"], "stop")
            value = json.loads(choice["message"]["content"])
            self.valid(value, SCHEMA)
            return value

        self.fifty(schema)

    def test_tools_fifty_of_fifty(self):
        tools = [{"type": "function", "function": {"name": "note_animal", "description": "Writes an animal down.",
                                                   "parameters": SCHEMA}}]

        def call(prompt):
            choice = self.chat(prompt, CALLED, tools=tools, tool_choice="required")
            self.assertEqual(choice["finish_reason"], "tool_calls", choice)
            (made,) = choice["message"]["tool_calls"]
            self.assertEqual(made["function"]["name"], "note_animal")
            value = json.loads(made["function"]["arguments"])
            self.valid(value, SCHEMA)
            return value

        self.fifty(call)

    def test_curl_streams(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not here")
        body = {"messages": [{"role": "user", "content": "Name three animals."}], "max_tokens": 24, "temperature": 0,
                "stream": True}
        said = subprocess.run(["curl", "-sS", "-N", f"http://127.0.0.1:{self.server.port}/v1/chat/completions", "-H",
                               "Content-Type: application/json", "-d", json.dumps(body)], capture_output=True, text=True,
                              check=True, timeout=240).stdout
        events = [line[6:] for line in said.splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(e)["choices"] for e in events[:-1]]
        text = "".join(c[0]["delta"].get("content") or "" for c in chunks if c)
        whole = self.server.post("/v1/chat/completions", {**body, "stream": False})["choices"][0]["message"]["content"]
        self.assertEqual(text, whole)
        self.assertGreater(len([c for c in chunks if c]), 5)

    def test_openai_package_streams(self):
        python = openai_python()
        if not os.path.exists(python):
            self.skipTest(f"{python} is not here: scripts/test.sh makes it")
        done = subprocess.run([python, "-c", OPENAI_CLIENT, f"http://127.0.0.1:{self.server.port}/v1"], capture_output=True,
                              text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        said = json.loads(done.stdout)
        self.assertEqual(said["streamed"], said["whole"])
        self.assertGreater(said["pieces"], 5)
        self.assertEqual(said["ends"], [said["ends"][0]])
        self.assertTrue(0 < said["tokens"] <= 24 and said["models"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
