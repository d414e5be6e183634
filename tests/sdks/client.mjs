// What a user of npm's openai package does. Usage: node client.mjs BASE_URL KEY MODEL; ends with 0 if all is well.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey });
const messages = [{ role: "user", content: "Hello there" }];

const { data: whole, request_id } = await client.chat.completions
  .create({ model, messages, max_tokens: 6, temperature: 0 })
  .withResponse();
assert.equal(whole.object, "chat.completion");
assert.match(request_id, /^req-/);

let text = "";
for await (const chunk of await client.chat.completions.create({
  model, messages, max_tokens: 6, temperature: 0, stream: true,
})) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);

const first = await client.responses.create({ model, input: "Hello there", max_output_tokens: 6 });
const second = await client.responses.create({
  model, input: "And then?", previous_response_id: first.id, max_output_tokens: 6,
});
assert.ok(second.usage.input_tokens > first.usage.input_tokens);
assert.equal((await client.responses.retrieve(second.id)).output_text ?? second.output_text, second.output_text);

const kinds = [];
for await (const event of await client.responses.create({ model, input: "Hi", max_output_tokens: 4, stream: true })) {
  kinds.push(event.type);
}
assert.equal(kinds[0], "response.created");
assert.match(kinds.at(-1), /^response\.(completed|incomplete)$/);

const ids = [];
for await (const card of client.models.list()) ids.push(card.id);
assert.ok(ids.includes(model));
await assert.rejects(client.chat.completions.create({ model: "none", messages }), { status: 404, code: "model_not_found" });
await assert.rejects(new OpenAI({ baseURL, apiKey: "wrong" }).models.list(), { status: 401 });

// A stream that is left is left at the gateway too.
const left = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
for await (const _ of left) break;
console.log("all is well");
