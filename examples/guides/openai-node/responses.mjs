// The Responses API with a tool that the client runs.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.GATEWAY_BASE_URL}/v1`,
  apiKey: process.env.GATEWAY_API_KEY,
});
const tools = [
  {
    type: "function",
    name: "read_temperature",
    description: "The temperature of a city in degrees Celsius.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
    strict: true,
  },
];
const readTemperature = ({ city }) => 21;

const input = [{ role: "user", content: "How warm is it in Lisbon?" }];
let response = await client.responses.create({
  model: "sim-chat",
  input,
  tools,
  tool_choice: "required",
});
for (const item of response.output) {
  if (item.type !== "function_call") continue;
  const given = JSON.parse(item.arguments);
  console.log(item.name, JSON.stringify(given));
  // nothing is kept between calls, so the next one repeats what was said
  input.push(item);
  input.push({
    type: "function_call_output",
    call_id: item.call_id,
    output: JSON.stringify(readTemperature(given)),
  });
}
response = await client.responses.create({ model: "sim-chat", input, tools });
console.log(response.output_text);
