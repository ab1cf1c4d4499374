// Asks the search of the built site, with the program that it has in a browser (a worker).
//
//   node search.js SITE QUESTION ...
//
// prints a JSON list with one list for each question: the locations found, the best of each page,
// the best page first.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [SETUP, QUERY, RESULT] = [0, 2, 3]; // types of the worker's messages

async function main(site, questions) {
  const folder = path.join(site, "assets/javascripts/workers");
  const file = fs.readdirSync(folder).find((name) => /^search\.\w+\.min\.js$/.test(name));
  let listener;
  let replies = [];
  const worker = vm.createContext({
    addEventListener: (_, handler) => (listener = handler),
    postMessage: (message) => replies.push(message),
  });
  worker.self = worker;
  vm.runInContext(fs.readFileSync(path.join(folder, file), "utf8"), worker);

  async function send(type, data) {
    replies = [];
    await listener({ data: { type, data } });
    return replies;
  }

  const index = fs.readFileSync(path.join(site, "search/search_index.js"), "utf8");
  await send(SETUP, { ...JSON.parse(index.replace("var __index = ", "")), options: {} });
  const answers = [];
  for (const question of questions) {
    const result = (await send(QUERY, question)).find((message) => message.type === RESULT);
    answers.push(
      result.data.items.map((page) => page.reduce((a, b) => (b.score > a.score ? b : a)).location),
    );
  }
  console.log(JSON.stringify(answers));
}

main(process.argv[2], process.argv.slice(3)).catch((error) => {
  console.error(error);
  process.exit(1);
});
