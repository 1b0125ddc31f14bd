import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.BooleanWritable;
import org.apache.hadoop.io.ByteWritable;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.DoubleWritable;
import org.apache.hadoop.io.FloatWritable;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.SequenceFile;
import org.apache.hadoop.io.ShortWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.io.VIntWritable;
import org.apache.hadoop.io.VLongWritable;
import org.apache.hadoop.io.Writable;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.mapred.FileSplit;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.mapred.SequenceFileRecordReader;
import org.apache.hadoop.util.ReflectionUtils;

/** Hadoop's own writer and reader of SequenceFiles, told what to do by lines: see tests/sequence_pairs.py. */
public class SequencePairs {
    static Writable made(String name, int i) {
        String text = "text " + i + " \u00e4\u20ac\ud83d\ude00".repeat(i % 5);
        switch (name) {
            case "Text": return new Text(text);
            case "BytesWritable": return new BytesWritable(text.getBytes(StandardCharsets.UTF_8));
            case "IntWritable": return new IntWritable((int) (i * 1000003L % 1000000 - 500000));
            case "LongWritable": return new LongWritable(i * 1000000000007L * (i % 2 == 0 ? 1 : -1));
            case "FloatWritable": return new FloatWritable(i / 4f);
            case "DoubleWritable": return new DoubleWritable(i / 8.0 - 5);
            case "ShortWritable": return new ShortWritable((short) (i % 1000 - 500));
            case "ByteWritable": return new ByteWritable((byte) (i % 256 - 128));
            case "BooleanWritable": return new BooleanWritable(i % 3 == 0);
            case "NullWritable": return NullWritable.get();
            case "VIntWritable": return new VIntWritable((i % 1000) * (i % 1000) * (i % 2 == 0 ? 1 : -1));
            case "VLongWritable": return new VLongWritable((long) i * i * i * i * (i % 2 == 0 ? 1 : -1));
            default: throw new IllegalArgumentException(name);
        }
    }

    static void write(Configuration conf, String[] words) throws Exception {
        SequenceFile.CompressionType type = SequenceFile.CompressionType.valueOf(words[4].toUpperCase());
        CompressionCodec codec = null;
        if (type != SequenceFile.CompressionType.NONE) {
            codec = (CompressionCodec) ReflectionUtils.newInstance(conf.getClassByName(words[5]), conf);
        }
        SequenceFile.Writer writer = SequenceFile.createWriter(conf,
            SequenceFile.Writer.file(new Path(words[1])),
            SequenceFile.Writer.keyClass(made(words[2], 0).getClass()),
            SequenceFile.Writer.valueClass(made(words[3], 0).getClass()),
            SequenceFile.Writer.compression(type, codec));
        int number = Integer.parseInt(words[6]);
        for (int i = 0; i < number; i++) {
            writer.append(made(words[2], i), made(words[3], i));
        }
        writer.close();
    }

    static void read(Configuration conf, String[] words) throws Exception {
        SequenceFile.Reader reader = new SequenceFile.Reader(conf, SequenceFile.Reader.file(new Path(words[1])));
        Writable key = made(reader.getKeyClass().getSimpleName(), 0);
        Writable value = made(reader.getValueClass().getSimpleName(), 0);
        int i = 0;
        for (; reader.next(key, value); i++) {
            Writable wantedKey = made(reader.getKeyClass().getSimpleName(), i);
            Writable wantedValue = made(reader.getValueClass().getSimpleName(), i);
            if (!key.equals(wantedKey) || !value.equals(wantedValue)) {
                throw new IllegalStateException(i + ": " + key + ", " + value);
            }
        }
        reader.close();
        System.out.println(i);
    }

    /** How many records Hadoop gives to each split of so many bytes. */
    static void splits(Configuration conf, String[] words) throws Exception {
        Path path = new Path(words[1]);
        long size = path.getFileSystem(conf).getFileStatus(path).getLen();
        long each = Long.parseLong(words[2]);
        StringBuilder counts = new StringBuilder();
        for (long start = 0; start < size; start += each) {
            SequenceFileRecordReader<Writable, Writable> reader = new SequenceFileRecordReader<>(
                new JobConf(conf), new FileSplit(path, start, Math.min(each, size - start), (String[]) null));
            Writable key = reader.createKey();
            Writable value = reader.createValue();
            int count = 0;
            while (reader.next(key, value)) {
                count++;
            }
            reader.close();
            counts.append(count).append(' ');
        }
        System.out.println(counts.toString().trim());
    }

    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            try {
                switch (words[0]) {
                    case "write": write(conf, words); System.out.println("written"); break;
                    case "read": read(conf, words); break;
                    default: splits(conf, words);
                }
            } catch (Exception | Error error) {
                System.out.println("failed: " + error);
            }
        }
    }
}
