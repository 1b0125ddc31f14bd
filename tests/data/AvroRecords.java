import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import org.apache.avro.Schema;
import org.apache.avro.file.CodecFactory;
import org.apache.avro.file.DataFileReader;
import org.apache.avro.file.DataFileWriter;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;

/** Avro's own writer and reader of container files, told what to do by lines: see tests/api/connectors/test_avro_files.py. */
public class AvroRecords {
    static final Schema SCHEMA = new Schema.Parser().parse("{'type':'record','name':'Order','namespace':'shop','fields':["
        .replace('\'', '"') + String.join(",", new String[] {
        "{'name':'id','type':'long'}", "{'name':'name','type':['null','string'],'default':null}",
        "{'name':'price','type':{'type':'bytes','logicalType':'decimal','precision':20,'scale':3}}",
        "{'name':'paid','type':[{'type':'fixed','name':'Paid','size':9,'logicalType':'decimal','precision':20,'scale':2},'null']}",
        "{'name':'at','type':{'type':'long','logicalType':'timestamp-micros'}}",
        "{'name':'local','type':{'type':'long','logicalType':'local-timestamp-millis'}}",
        "{'name':'day','type':{'type':'int','logicalType':'date'}}", "{'name':'hour','type':{'type':'int','logicalType':'time-millis'}}",
        "{'name':'state','type':{'type':'enum','name':'State','symbols':['NEW','SENT','BACK']}}",
        "{'name':'was','type':['null','State']}", "{'name':'code','type':{'type':'fixed','name':'Code','size':3}}",
        "{'name':'lines','type':{'type':'array','items':{'type':'record','name':'Line','fields':[{'name':'n','type':'int'}]}}}",
        "{'name':'extra','type':{'type':'map','values':['null','double']}}", "{'name':'flag','type':'boolean'}",
        "{'name':'blob','type':'bytes'}", "{'name':'small','type':'float'}"}).replace('\'', '"') + "]}");

    static GenericRecord made(long i) {
        GenericRecord record = new GenericData.Record(SCHEMA);
        record.put("id", i * 1000000000007L * (i % 2 == 0 ? 1 : -1));
        record.put("name", i % 3 == 0 ? null : "text " + i + " \u00e4\u20ac\ud83d\ude00".repeat((int) (i % 5)));
        record.put("price", ByteBuffer.wrap(BigInteger.valueOf(i * 1001 - 500000).toByteArray()));
        byte[] number = BigInteger.valueOf(-i).toByteArray();
        byte[] fixed = new byte[9];
        java.util.Arrays.fill(fixed, (byte) (i > 0 ? -1 : 0));
        System.arraycopy(number, 0, fixed, 9 - number.length, number.length);
        record.put("paid", i % 4 == 0 ? null : new GenericData.Fixed(SCHEMA.getField("paid").schema().getTypes().get(0), fixed));
        record.put("at", i * 86400000123L - 62135596800000000L);
        record.put("local", i * 3600001L - 86400000L);
        record.put("day", (int) i - 500);
        record.put("hour", (int) (i % 86400) * 1000 + 7);
        Schema state = SCHEMA.getField("state").schema();
        record.put("state", new GenericData.EnumSymbol(state, state.getEnumSymbols().get((int) (i % 3))));
        record.put("was", i % 2 == 0 ? null : new GenericData.EnumSymbol(state, "NEW"));
        record.put("code", new GenericData.Fixed(SCHEMA.getField("code").schema(), new byte[] {1, 2, (byte) i}));
        java.util.List<GenericRecord> lines = new java.util.ArrayList<>();
        for (int n = 0; n < i % 4; n++) {
            GenericRecord line = new GenericData.Record(SCHEMA.getField("lines").schema().getElementType());
            line.put("n", n);
            lines.add(line);
        }
        record.put("lines", lines);
        java.util.Map<String, Object> extra = new java.util.HashMap<>();
        if (i % 2 == 0) extra.put("half", i / 2.0);
        if (i % 6 == 0) extra.put("none", null);
        record.put("extra", extra);
        record.put("flag", i % 3 == 0);
        record.put("blob", ByteBuffer.wrap(("b" + i).getBytes()));
        record.put("small", i / 4f);
        return record;
    }

    static String splits(File file, long size) throws Exception {
        StringBuilder counts = new StringBuilder();
        for (long start = 0; start < file.length(); start += size) {
            try (DataFileReader<GenericRecord> reader = new DataFileReader<>(file, new GenericDatumReader<>())) {
                reader.sync(start);
                int count = 0;
                while (reader.hasNext() && !reader.pastSync(Math.min(start + size, file.length()))) {
                    reader.next();
                    count++;
                }
                counts.append(count).append(' ');
            }
        }
        return counts.toString().trim();
    }

    public static void main(String[] none) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            File file = new File(words[1]);
            if (words[0].equals("write")) {
                try (DataFileWriter<GenericRecord> writer = new DataFileWriter<>(new GenericDatumWriter<>(SCHEMA))) {
                    writer.setCodec(CodecFactory.fromString(words[2])).setSyncInterval(4000).create(SCHEMA, file);
                    for (int i = 0; i < Integer.parseInt(words[3]); i++) writer.append(made(i));
                }
                System.out.println("written");
            } else if (words[0].equals("splits")) {
                System.out.println(splits(file, Long.parseLong(words[2])));
            } else {
                // Written by others: its schema, then each record as JSON.
                try (DataFileReader<GenericRecord> reader = new DataFileReader<>(file, new GenericDatumReader<>())) {
                    System.out.println(reader.getSchema());
                    int count = 0;
                    for (GenericRecord record : reader) {
                        if (count++ < Integer.parseInt(words[2])) System.out.println(record);
                    }
                    System.out.println(count);
                }
            }
        }
    }
}
