"""Tools of OpenAI's or Anthropic's servers: the request is answered without them, and the answer says so."""

import logging

from tests.fakes.scripted_worker import ScriptedWorker

HEADER = "x-radixgate-omitted-tools"


async def test_a_response_names_the_hosted_tools_that_were_left_out(gateway, caplog):
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
    body = {"model": "m", "input": "hi", "tools": [function, {"type": "web_search"}], "stream": True}
    caplog.set_level(logging.INFO)
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.post(
            f"{running.url}/v1/responses", json=body, headers=running.headers()
        ) as response:
            assert (response.status, response.headers[HEADER]) == (200, "web_search")
            await response.read()
        body["tool_choice"] = {"type": "web_search"}
        async with running.http.post(
            f"{running.url}/v1/responses", json=body, headers=running.headers()
        ) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "tool_choice")
    assert [tool["function"]["name"] for tool in worker.seen[0].body["tools"]] == ["f"]
    assert [line for line in caplog.messages if "left out: web_search" in line]


async def test_a_message_names_the_tools_of_anthropics_servers_that_were_left_out(gateway):
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    body = {
        "model": "m",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
    }
    async with ScriptedWorker() as worker, gateway(worker) as running:
        async with running.http.post(
            f"{running.url}/v1/messages", json=body, headers=running.headers()
        ) as response:
            assert (response.status, response.headers[HEADER]) == (200, "web_search_20250305")
        async with running.http.post(
            f"{running.url}/v1/messages", json={**body, "tools": tools[1:]}, headers=running.headers()
        ) as response:
            assert (response.status, HEADER in response.headers) == (200, False)
    assert [tool["function"]["name"] for tool in worker.seen[0].body["tools"]] == ["bash"]
