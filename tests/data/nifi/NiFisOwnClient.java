import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.nifi.remote.Transaction;
import org.apache.nifi.remote.TransferDirection;
import org.apache.nifi.remote.client.SiteToSiteClient;
import org.apache.nifi.remote.protocol.DataPacket;
import org.apache.nifi.remote.protocol.SiteToSiteTransportProtocol;

/** Sends texts to an input port, and prints what an output port gives: URL send|receive PORT TEXTS. */
public class NiFisOwnClient {
    public static void main(String[] arguments) throws Exception {
        boolean sends = arguments[1].equals("send");
        SiteToSiteClient.Builder builder = new SiteToSiteClient.Builder()
                .url(arguments[0])
                .portName(arguments[2])
                .requestBatchCount(100)
                .transportProtocol(SiteToSiteTransportProtocol.HTTP);
        try (SiteToSiteClient client = builder.build()) {
            Transaction transaction =
                    client.createTransaction(sends ? TransferDirection.SEND : TransferDirection.RECEIVE);
            if (sends) {
                for (int i = 3; i < arguments.length; i++) {
                    transaction.send(arguments[i].getBytes(StandardCharsets.UTF_8), Map.of("number", "" + i));
                }
            } else {
                DataPacket packet;
                while ((packet = transaction.receive()) != null) {
                    String text = new String(packet.getData().readAllBytes(), StandardCharsets.UTF_8);
                    System.out.println("GOT " + text + " " + packet.getAttributes().get("filename"));
                }
            }
            transaction.confirm();
            transaction.complete();
        }
        System.exit(0);
    }
}
