// What a user of the Vercel AI SDK does. Usage: node ai_sdk.mjs openai|compatible|anthropic|responses; prints the
// results as JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";

const { generateText, Output, stepCountIs, streamText, tool } = ai;
const stopWhen = (stepCountIs ?? ai.isStepCount)(4);
const provider = process.argv[2];
const baseURL = `${process.env.RADIXGATE_URL}/v1`;
const key = process.env.RADIXGATE_API_KEY;
const spentKey = process.env.RADIXGATE_SPENT_KEY;
const model = "m";

const providers = {
  openai: (apiKey) => createOpenAI({ baseURL, apiKey }).chat(model),
  responses: (apiKey) => createOpenAI({ baseURL, apiKey }).responses(model),
  compatible: (apiKey) =>
    createOpenAICompatible({ name: "radixgate", baseURL, apiKey, supportsStructuredOutputs: true })(model),
  anthropic: (apiKey) => createAnthropic({ baseURL, apiKey })(model),
};
const chat = providers[provider](key);
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

async function refusal(languageModel, prompt) {
  try {
    await generateText({ model: languageModel, prompt, maxRetries: 0 });
  } catch (error) {
    return { status: error.statusCode, message: error.message };
  }
  return null;
}

const results = {};
results.chat = (await generateText({ model: chat, prompt: "Hello" })).text;

const streamed = streamText({ model: chat, prompt: "Hello" });
results.stream = "";
for await (const text of streamed.textStream) results.stream += text;

const add = tool({
  description: "Adds two numbers",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => String(a + b),
});
const loop = { model: chat, prompt: 'use add {"a": 2, "b": 3}', tools: { add }, stopWhen };
results.tools = (await generateText(loop)).text;
const streamedLoop = streamText(loop);
results.streamed_tools = "";
for await (const text of streamedLoop.textStream) results.streamed_tools += text;

const schema = z.object({ city: z.string(), days: z.number() });
results.schema = (await generateText({ model: chat, prompt: "Where?", output: Output.object({ schema }) })).output;

const content = [
  { type: "text", text: "What is this?" },
  { type: "image", image: pixel, mediaType: "image/png" },
];
results.image = (await generateText({ model: chat, messages: [{ role: "user", content }] })).text;

const thought = await generateText({ model: chat, prompt: "think first" });
results.thought = thought.text;
const asked = { role: "user", content: "think first" };
const thinking = streamText({ model: chat, messages: [asked] });
for await (const _ of thinking.textStream);
const { messages: said } = await thinking.response;
await generateText({ model: chat, messages: [asked, ...said, { role: "user", content: "And then?" }] });

const left = new AbortController();
const slow = streamText({ model: chat, prompt: "count slowly one two three", abortSignal: left.signal, onError() {} });
for await (const _ of slow.textStream) {
  left.abort();
  break;
}
results.wrong_key = (await refusal(providers[provider]("wrong"), "Hello"))?.status;
results.over_quota = (await refusal(providers[provider](spentKey), "Hello"))?.status;
results.too_long = (await refusal(chat, "word ".repeat(40000)))?.message;
console.log(JSON.stringify(results));
