// What a build tool does: reads the tree below `tree`, a thousand files at a time, writes each changed below `built`, and an index.
const fs = require('fs/promises');
const path = require('path');

async function filesBelow(dir) {
    const entries = await fs.readdir(dir, { withFileTypes: true });
    const found = entries.map((entry) => {
        const name = path.join(dir, entry.name);
        return entry.isDirectory() ? filesBelow(name) : [name];
    });
    return (await Promise.all(found)).flat();
}

async function build(name) {
    const to = path.join('built', path.relative('tree', name));
    const { mtimeMs } = await fs.stat(name);
    const text = await fs.readFile(name, 'utf8');
    await fs.mkdir(path.dirname(to), { recursive: true });
    await fs.writeFile(to, text.toUpperCase());
    return { name, mtimeMs, lines: text.split('\n').length };
}

async function main() {
    const names = await filesBelow('tree');
    const index = [];
    while (names.length > 0) {
        index.push(...(await Promise.all(names.splice(0, 1000).map(build))));
    }
    await fs.writeFile('index.json', JSON.stringify(index));
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
