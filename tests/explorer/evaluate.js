// Evaluates the formulas of the explorer. Arguments: the path of laws.js. Input and output: JSON lists.
"use strict";

const Laws = require(process.argv[2]);

const known = new Map();

function law(parameters) {
  const key = parameters.join();
  if (!known.has(key)) known.set(key, Laws.law(...parameters));
  return known.get(key);
}

const QUESTIONS = {
  summary: ({ p }) => {
    const one = law(p);
    return {
      log_normalizer: Laws.logNormalizer(one),
      entropy: Laws.entropy(one),
      kl_uniform: Laws.klUniform(one),
      mean: Laws.meanLength(one),
      mean_complement: Laws.meanComplement(one),
      variance: Laws.variance(one),
      caps: [0.5, 0.95].map((probability) => Laws.capAngle(one, probability)),
    };
  },
  point: ({ p, minus, plus }) => {
    const [one, r] = [law(p), Laws.rapidity(minus, plus)];
    return { log_pdf: Laws.logDensity(one, r), ...Laws.tails(one, r) };
  },
  quantile: ({ p, u, complement }) => ({ minus: Laws.oneMinus(Laws.quantile(law(p), u, complement)) }),
  kl: ({ p, q, angle }) => Laws.kl(law(p), law(q), angle),
};

const questions = JSON.parse(require("fs").readFileSync(0, "utf-8"));
console.log(JSON.stringify(questions.map(({ ask, ...rest }) => QUESTIONS[ask](rest))));
