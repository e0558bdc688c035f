#!/usr/bin/env python3
"""Weighs the Rust sources below a checkout: product lines, type names, tuple bindings, methods of Session, files.

weigh.py [FIGURE=MOST ...]: prints every figure; with bounds, exits 1 if one is exceeded. Comments, blank lines, items
under #[cfg(test)] and whole test files do not count as product. `tests` counts their lines, and those of tests/."""
import collections, os, re, sys

def blank(src):
    """The source with strings, characters and comments blanked; lines stay."""
    out, i, n = [], 0, len(src)
    while i < n:
        c = src[i]
        if src.startswith('//', i):
            j = src.find('\n', i); i = n if j < 0 else j; continue
        if src.startswith('/*', i):
            d, j = 1, i + 2
            while j < n and d:
                if src.startswith('/*', j): d += 1; j += 2
                elif src.startswith('*/', j): d -= 1; j += 2
                else:
                    if src[j] == '\n': out.append('\n')
                    j += 1
            i = j; continue
        is_raw = c in 'brc' and (i == 0 or not (src[i - 1].isalnum() or src[i - 1] == '_'))
        m = re.match(r'(?:b|c)?r(#*)"', src[i:i + 12]) if is_raw else None
        if m:
            end = '"' + m.group(1); j = src.find(end, i + m.end()); j = n if j < 0 else j + len(end)
            out.append('""' + '\n' * src.count('\n', i, j)); i = j; continue
        if c == '"':
            j = i + 1
            while j < n and src[j] != '"': j += 2 if src[j] == '\\' else 1
            j += 1; out.append('""' + '\n' * src.count('\n', i, j)); i = j; continue
        if c == "'":
            m = re.match(r"'(\\.[^']*|[^\\'])'", src[i:i+14])
            if m: out.append("' '"); i += m.end(); continue
        out.append(c); i += 1
    return ''.join(out)

def without_tests(s):
    """Removes items under #[cfg(test)] or #[cfg(all(test, ..))]; returns the rest and the modules declared there."""
    mods, spans = set(), []
    for m in re.finditer(r'#\[cfg\((?:all\()?test\b[^\]]*\]', s):
        j = m.end()
        while True:
            k = re.compile(r'\s*#\[[^\]]*\]').match(s, j)
            if not k: break
            j = k.end()
        b, e = s.find('{', j), s.find(';', j)
        if e >= 0 and (b < 0 or e < b):
            d = re.match(r'\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)', s[j:e])
            if d: mods.add(d.group(1))
            spans.append((m.start(), e + 1)); continue
        if b < 0: continue
        d, k = 0, b
        while k < len(s):
            if s[k] == '{': d += 1
            elif s[k] == '}':
                d -= 1
                if d == 0: break
            k += 1
        spans.append((m.start(), k + 1))
    for a, b in reversed(spans): s = s[:a] + '\n' * s.count('\n', a, b) + s[b:]
    return s, mods

root = 'src'
files = [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs if f.endswith('.rs')]
texts, tests = {}, set()
for p in files:
    s, mods = without_tests(blank(open(p, errors='ignore').read()))
    texts[p] = s
    base = os.path.dirname(p) if os.path.basename(p) in ('mod.rs', 'lib.rs') else p[:-3]
    for m in mods:
        if m != 'testing': tests |= {q for q in files if q == f'{base}/{m}.rs' or q.startswith(f'{base}/{m}/')}
product = {p: s for p, s in texts.items() if p not in tests}
lines = {p: sum(1 for l in s.split('\n') if l.strip()) for p, s in product.items()}
testing = sum(n for p, n in lines.items() if '/testing' in p)
VISIBILITY = r'(?:pub(?:\([a-z]+\))? )?'
USUAL = 'State Inner Shared Entry'.split()
# The types of a trait and of its implementations are named through the trait, and do not count.
defined = re.compile(r'(?m)^(?:\s*' + VISIBILITY + r'(?:struct|enum|trait|union)|' + VISIBILITY + r'type) (\w+)')
names = (m.group(1) for s in product.values() for m in defined.finditer(s))
types = collections.Counter(name for name in names if name not in USUAL)
dup = {k: v for k, v in types.items() if v > 1}
tuples = sum(len(re.findall(r'(?m)^\s*let \((?:mut )?\w+(?:, (?:mut )?\w+)+\)\s*=\s*\(', s)) for s in product.values())
methods = re.compile(r'(?m)^    ' + VISIBILITY + r'(?:const |async )*fn ')
blocks = re.compile(r'(?ms)^impl(?:<[^>]*>)? Session \{.*?^\}')
session = sum(len(methods.findall(block)) for s in product.values() for block in blocks.findall(s))
scripts = (os.path.join(d, f) for d, _, fs in os.walk('lua') for f in fs)
lua = sum(1 for p in scripts for l in open(p) if l.strip() and not l.strip().startswith('--'))
def code(path):
    return sum(1 for line in blank(open(path, errors='ignore').read()).split('\n') if line.strip())

unit = sum(code(p) for p in files) - sum(lines.values())
apart = sum(code(os.path.join(d, f)) for d, _, fs in os.walk('tests') for f in fs if f.endswith('.rs'))
figures = {'product': sum(lines.values()), 'library': sum(lines.values()) - testing, 'files': len(product),
           'longest': max(lines.values()), 'lua': lua, 'tests': unit + apart,
           'types': len(types), 'homonyms': len(dup), 'tuples': tuples, 'session': session}
bad = []
for k, v in figures.items():
    bound = next((a.split('=')[1] for a in sys.argv[1:] if a.split('=')[0] == k), None)
    over = bound is not None and v > int(bound)
    print(f'{k}: {v}' + (f' (at most {bound}{"; FALLS SHORT" if over else ""})' if bound else ''))
    if over: bad.append(f'{k}:{v}>{bound}')
if dup: print('defined more than once:', ' '.join(f'{k}x{v}' for k, v in sorted(dup.items(), key=lambda x: -x[1])[:12]))
print('heavy: ' + ' '.join(bad) if bad else 'light')
sys.exit(bool(bad))
