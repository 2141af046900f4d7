"""A tool that the model calls and the client runs."""

import json
import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ["GATEWAY_BASE_URL"] + "/v1", api_key=os.environ["GATEWAY_API_KEY"]
)
tools = [
    {
        "type": "function",
        "function": {
            "name": "read_temperature",
            "description": "The temperature of a city in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def read_temperature(city):
    return 21


messages = [{"role": "user", "content": "How warm is it in Lisbon?"}]
answer = client.chat.completions.create(
    model="sim-chat", messages=messages, tools=tools, tool_choice="required"
)
messages.append(answer.choices[0].message)
for call in answer.choices[0].message.tool_calls:
    arguments = json.loads(call.function.arguments)
    print(call.function.name, arguments)
    result = read_temperature(**arguments)
    messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
answer = client.chat.completions.create(model="sim-chat", messages=messages, tools=tools)
print(answer.choices[0].message.content)
