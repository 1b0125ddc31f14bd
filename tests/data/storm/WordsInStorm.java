import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.ShellBolt;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BasicOutputCollector;
import org.apache.storm.topology.IRichBolt;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseBasicBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/** Runs the lines of a file through two bolts in Python under Storm, and writes what comes of them: IN OUT SPLIT COUNT. */
public class WordsInStorm {
    static final AtomicInteger NUM_ACKED = new AtomicInteger();

    public static class Lines extends BaseRichSpout {
        private final String[] lines;
        private transient SpoutOutputCollector collector;
        private int next;

        Lines(List<String> lines) {
            this.lines = lines.toArray(new String[0]);
        }

        @Override
        public void open(Map<String, Object> conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void nextTuple() {
            if (next < lines.length) {
                collector.emit(new Values(lines[next]), next);
                next++;
            }
        }

        @Override
        public void ack(Object id) {
            NUM_ACKED.incrementAndGet();
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("line"));
        }
    }

    public static class Program extends ShellBolt implements IRichBolt {
        private final String[] fields;

        Program(String script, String... fields) {
            super("python3", script);
            changeChildCWD(false);
            this.fields = fields;
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields(fields));
        }

        @Override
        public Map<String, Object> getComponentConfiguration() {
            return null;
        }
    }

    public static class Write extends BaseBasicBolt {
        private final String path;

        Write(String path) {
            this.path = path;
        }

        @Override
        public synchronized void execute(Tuple tuple, BasicOutputCollector collector) {
            try (FileWriter out = new FileWriter(path, true)) {
                out.write(tuple.getValue(0) + "\t" + tuple.getValue(1) + "\n");
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<String> lines = Files.readAllLines(Paths.get(arguments[0]));
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("lines", new Lines(lines));
        builder.setBolt("split", new Program(arguments[2], "word"), 2).shuffleGrouping("lines");
        builder.setBolt("count", new Program(arguments[3], "word", "count"), 2).fieldsGrouping("split", new Fields("word"));
        builder.setBolt("write", new Write(arguments[1])).globalGrouping("count");
        Config conf = new Config();
        try (LocalCluster cluster = new LocalCluster()) {
            cluster.submitTopology("words", conf, builder.createTopology());
            while (NUM_ACKED.get() < lines.size()) {
                Thread.sleep(50);
            }
        }
        System.exit(0);
    }
}
