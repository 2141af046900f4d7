// Runs every check of a module with each model; prints what went wrong as JSON by check and model.
import { pathToFileURL } from "node:url";

const { checks } = await import(pathToFileURL(process.argv[2]));
const results = {};
for (const [name, check] of Object.entries(checks)) {
  for (const model of process.env.MODELS.split(",")) {
    try {
      await check(model);
      results[`${name} ${model}`] = null;
    } catch (error) {
      results[`${name} ${model}`] = String(error?.stack ?? error);
    }
  }
}
console.log(JSON.stringify(results));
