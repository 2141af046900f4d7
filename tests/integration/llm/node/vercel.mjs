// Conversations of two steps with a tool, as Vercel's AI SDK holds them.
import assert from "node:assert/strict";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { BASE_URL, KEY } = process.env;
const openai = createOpenAI({ baseURL: `${BASE_URL}/v1`, apiKey: KEY });
const google = createGoogleGenerativeAI({ baseURL: `${BASE_URL}/v1beta`, apiKey: KEY });

function prepare(model) {
  const asked = [];
  const get_weather = tool({
    description: "Looks up the weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (asked.push(city), "9 degrees"),
  });
  const options = {
    model,
    prompt: "Call get_weather for me",
    tools: { get_weather },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
    // the gateway keeps no items that a later request could name
    providerOptions: { openai: { store: false } },
    onError: ({ error }) => { throw error; },
  };
  return { asked, options };
}

async function generate(model) {
  const { asked, options } = prepare(model);
  const made = await generateText(options);
  check(made.text, made.steps, asked);
}

async function stream(model) {
  const { asked, options } = prepare(model);
  const made = streamText(options);
  check(await made.text, await made.steps, asked);
}

function check(text, steps, asked) {
  assert.match(text, /9 degrees/);
  assert.deepEqual(asked, ["sample"]);
  assert.equal(steps.length, 2);
  assert.ok(steps.at(-1).usage.outputTokens > 0);
}

export const checks = {
  async chat(model) {
    await generate(openai.chat(model));
  },

  async chat_streamed(model) {
    await stream(openai.chat(model));
  },

  async responses(model) {
    await generate(openai.responses(model));
  },

  async responses_streamed(model) {
    await stream(openai.responses(model));
  },

  async google_native(model) {
    await generate(google(model));
  },

  async google_native_streamed(model) {
    await stream(google(model));
  },
};
