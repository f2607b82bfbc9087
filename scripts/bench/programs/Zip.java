import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import java.util.zip.ZipOutputStream;

/** Packs the files below `tree` into an archive, and what is in that below `unpacked`. */
class Zip {
    public static void main(String[] arguments) throws IOException {
        Path archive = Path.of("tree.zip");
        try (var out = new ZipOutputStream(Files.newOutputStream(archive)); var walk = Files.walk(Path.of("tree"))) {
            out.setLevel(1);
            for (Path path : (Iterable<Path>) walk.filter(Files::isRegularFile)::iterator) {
                out.putNextEntry(new ZipEntry(path.toString()));
                Files.copy(path, out);
                out.closeEntry();
            }
        }
        try (var zip = new ZipFile(archive.toFile())) {
            for (ZipEntry entry : Collections.list(zip.entries())) {
                Path path = Path.of("unpacked", entry.getName());
                Files.createDirectories(path.getParent());
                try (var in = zip.getInputStream(entry)) {
                    Files.copy(in, path);
                }
            }
        }
    }
}
