//! The shapes as data: what tells each from others, what names a message of it, and what defines the same request.

use super::shape::Part::{self, First, One, Same};
use super::shape::When::{self, Is, Media, NoBody, NoHeaders, Starts, There};
use super::shape::{Control, Form, Shape};

/// Where the content type stands.
pub(crate) const CONTENT_TYPE: &[&str] =
    &["header:content-type", "property:content_type", "property:content-type", "attribute:content-type"];

const CE_ID: &[&str] = &["header:ce_id", "header:ce-id", "header:cloudEvents_id", "header:cloudEvents:id"];
const CE_SOURCE: &[&str] =
    &["header:ce_source", "header:ce-source", "header:cloudEvents_source", "header:cloudEvents:source"];
const CE_VERSION: &[&str] = &[
    "header:ce_specversion",
    "header:ce-specversion",
    "header:cloudEvents_specversion",
    "header:cloudEvents:specversion",
];
const CE_DEBEZIUM: &[&str] = &["header:ce_iodebeziumop", "header:ce-iodebeziumop"];
const CE_DATA: &[Part] = &[First(&["body:/data", "body:/data_base64 | base64"])];
const CE_KEY: &[Part] = &[One("body:/source"), One("body:/id")];
/// Its own ids repeat: all rows of a snapshot share one, so the row's key is part of the key.
const CE_DEBEZIUM_KEY: &[Part] = &[One("body:/source"), One("body:/id"), One(ROW)];
const CE_MEDIA: When = Media("application/cloudevents+json");
const CE_BODY: When = Starts(&["body:/specversion"], "1.");
const CE_BODY_DEBEZIUM: When = There(&["body:/iodebeziumop"]);

/// Follows a deletion in a compacted topic. A message without data has headers and is none.
pub(crate) const TOMBSTONE: Control =
    Control { what: "tombstone", when: &[There(&["record-key | hex"]), NoBody, NoHeaders] };
const S3_TEST: Control = Control {
    what: "s3:TestEvent",
    when: &[Is(&["body:/Event"], "s3:TestEvent"), Is(&["body:/Service"], "Amazon S3")],
};

/// The columns of the row's key, however the record key is wrapped.
const ROW: &str = "record-key | columns";
const ROW_OP: &[&str] = &["body:/payload/op", "body:/op"];
const ROW_CONNECTOR: &[&str] = &["body:/payload/source/connector", "body:/source/connector"];
const ROW_CONTENT: &[Part] =
    &[First(&["body:/payload/before", "body:/before"]), First(&["body:/payload/after", "body:/after"])];
const OP: Part = First(ROW_OP);

/// A field of a row change's `source`, with and without the wrapper that the JSON converter adds.
macro_rules! source {
    ($field:literal) => {
        First(&[concat!("body:/payload/source/", $field), concat!("body:/source/", $field)])
    };
}

const fn form(
    what: &'static str,
    when: &'static [When],
    unless: &'static [When],
    key: &'static [Part],
    content: &'static [Part],
) -> Form {
    Form { what, when, unless, key, content }
}

const fn shape(name: &'static str, forms: &'static [Form]) -> Shape {
    Shape { name, forms, split: None, control: &[] }
}

const WHOLE: &[Part] = &[One("body")];
const WEBHOOK_BODY: &[Part] = &[One("body:/body")];
const MT_ORIGINAL: &[&str] = &["header:MT-OriginalMessageId", "body:/headers/MT-OriginalMessageId"];
const NSB_SQS_ID: &str = "attribute:NServiceBus.AmazonSQS.Headers | json:/NServiceBus.MessageId";

/// Every preset.
pub(crate) const SHAPES: &[Shape] = &[
    shape(
        "message-id",
        &[form(
            "an id of the producer",
            &[There(&["property:message_id", "property:message-id"])],
            &[],
            &[Same(&["property:message_id", "property:message-id"])],
            &[],
        )],
    ),
    shape(
        "cloudevents",
        &[
            form(
                "binary mode",
                &[Starts(CE_VERSION, "1.")],
                &[There(CE_DEBEZIUM), CE_BODY_DEBEZIUM],
                &[Same(CE_SOURCE), Same(CE_ID)],
                WHOLE,
            ),
            form(
                "binary mode, from Debezium",
                &[Starts(CE_VERSION, "1."), There(CE_DEBEZIUM)],
                &[],
                &[Same(CE_SOURCE), Same(CE_ID), One(ROW)],
                WHOLE,
            ),
            form("structured mode", &[CE_MEDIA, CE_BODY], &[CE_BODY_DEBEZIUM], CE_KEY, CE_DATA),
            form(
                "structured mode, from Debezium",
                &[CE_MEDIA, CE_BODY, CE_BODY_DEBEZIUM],
                &[],
                CE_DEBEZIUM_KEY,
                CE_DATA,
            ),
            // A queue that has no place for a content type.
            form(
                "structured mode without a content type",
                &[CE_BODY],
                &[There(CONTENT_TYPE), There(CE_VERSION), CE_BODY_DEBEZIUM],
                CE_KEY,
                CE_DATA,
            ),
        ],
    ),
    Shape {
        name: "debezium",
        split: None,
        control: &[TOMBSTONE],
        forms: &[
            form(
                "a row of PostgreSQL",
                &[Is(ROW_CONNECTOR, "postgresql"), There(ROW_OP)],
                &[],
                // Rows of one transaction have positions of their own, but a key change is two events at one of them.
                &[source!("name"), source!("schema"), source!("table"), source!("lsn"), One(ROW), OP],
                ROW_CONTENT,
            ),
            form(
                "a row of MySQL",
                &[Is(ROW_CONNECTOR, "mysql"), There(ROW_OP)],
                &[],
                // Rows of one statement share `pos`; rows of a snapshot share `row` too.
                &[
                    source!("name"),
                    source!("db"),
                    source!("table"),
                    source!("file"),
                    source!("pos"),
                    source!("row"),
                    One(ROW),
                    OP,
                ],
                ROW_CONTENT,
            ),
            form(
                "a row of SQL Server",
                &[Is(ROW_CONNECTOR, "sqlserver"), There(ROW_OP)],
                &[Is(ROW_OP, "r")],
                &[
                    source!("name"),
                    source!("db"),
                    source!("schema"),
                    source!("table"),
                    source!("commit_lsn"),
                    source!("change_lsn"),
                    source!("event_serial_no"),
                    One(ROW),
                    OP,
                ],
                ROW_CONTENT,
            ),
            form(
                "a row of a snapshot of SQL Server",
                &[Is(ROW_CONNECTOR, "sqlserver"), Is(ROW_OP, "r")],
                &[],
                &[
                    source!("name"),
                    source!("db"),
                    source!("schema"),
                    source!("table"),
                    source!("commit_lsn"),
                    One(ROW),
                    OP,
                ],
                ROW_CONTENT,
            ),
        ],
    },
    Shape {
        name: "debezium-outbox",
        split: None,
        control: &[TOMBSTONE],
        forms: &[form(
            "an event of the outbox router",
            &[There(&["header:id"])],
            &[There(ROW_CONNECTOR), There(&["header:task"])],
            &[One("header:id")],
            &[],
        )],
    },
    Shape {
        name: "s3-event",
        split: Some("body:/Records"),
        control: &[S3_TEST],
        forms: &[form(
            "a record of an S3 event",
            &[Is(&["body:/eventSource"], "aws:s3"), Starts(&["body:/eventVersion"], "2.")],
            &[],
            // Only a change to an object has a sequencer; nothing else tells a duplicate from a second event.
            &[
                One("body:/s3/bucket/name"),
                One("body:/s3/object/key"),
                One("body:/eventName"),
                One("body:/s3/object/sequencer"),
            ],
            &[One("body:/s3/object")],
        )],
    },
    shape(
        "sns",
        &[form(
            "a notification in its envelope",
            &[Is(&["body:/Type"], "Notification"), There(&["body:/TopicArn"])],
            &[],
            &[One("body:/MessageId")],
            // The signature and its address change from one delivery to the next.
            &[One("body:/Message")],
        )],
    ),
    shape(
        "sns-raw",
        &[form(
            "a raw delivery with an id of its publisher",
            &[There(&["attribute:idempotency-key", "attribute:eventId"])],
            &[There(&["body:/TopicArn"])],
            &[First(&["attribute:idempotency-key", "attribute:eventId"])],
            &[],
        )],
    ),
    shape(
        "eventbridge",
        &[form(
            "an event of a bus",
            &[There(&["body:/detail-type"]), Is(&["body:/version"], "0"), There(&["body:/account"])],
            &[],
            &[One("body:/source"), One("body:/id")],
            // A replay from an archive adds its name.
            &[One("body:/detail")],
        )],
    ),
    shape(
        "stripe",
        &[form(
            "an event",
            &[Is(&["body:/object"], "event"), Starts(&["body:/id"], "evt_"), There(&["body:/type"])],
            &[],
            &[One("body:/id")],
            // `pending_webhooks` counts down.
            &[One("body:/type"), One("body:/data")],
        )],
    ),
    shape(
        "shopify",
        &[
            form(
                "a webhook",
                &[There(&["header:X-Shopify-Topic"])],
                &[],
                &[
                    One("header:X-Shopify-Shop-Domain"),
                    One("header:X-Shopify-Topic"),
                    One("header:X-Shopify-Event-Id"),
                ],
                &[],
            ),
            form(
                "a webhook's headers as attributes",
                &[There(&["attribute:X-Shopify-Topic"])],
                &[],
                &[
                    One("attribute:X-Shopify-Shop-Domain"),
                    One("attribute:X-Shopify-Topic"),
                    One("attribute:X-Shopify-Event-Id"),
                ],
                &[],
            ),
            form(
                "a webhook through a gateway",
                &[There(&["body:/headers/x-shopify-topic", "body:/headers/X-Shopify-Topic"])],
                &[],
                &[
                    First(&["body:/headers/x-shopify-shop-domain", "body:/headers/X-Shopify-Shop-Domain"]),
                    First(&["body:/headers/x-shopify-topic", "body:/headers/X-Shopify-Topic"]),
                    First(&["body:/headers/x-shopify-event-id", "body:/headers/X-Shopify-Event-Id"]),
                ],
                WEBHOOK_BODY,
            ),
        ],
    ),
    // The delivery id is per event: every hook that gets the event gets it.
    shape(
        "github",
        &[
            form(
                "a webhook",
                &[There(&["header:X-GitHub-Event"])],
                &[],
                &[One("header:X-GitHub-Delivery")],
                &[],
            ),
            form(
                "a webhook's headers as attributes",
                &[There(&["attribute:X-GitHub-Event"])],
                &[],
                &[One("attribute:X-GitHub-Delivery")],
                &[],
            ),
            form(
                "a webhook through a gateway",
                &[There(&["body:/headers/x-github-event", "body:/headers/X-GitHub-Event"])],
                &[],
                &[First(&["body:/headers/x-github-delivery", "body:/headers/X-GitHub-Delivery"])],
                WEBHOOK_BODY,
            ),
        ],
    ),
    // A retry is published anew under the same id, with one more in `retries`.
    shape(
        "celery",
        &[form(
            "a task, protocol 2",
            &[There(&["header:task"]), There(&["header:id"])],
            &[],
            &[One("header:id"), One("header:retries")],
            &[],
        )],
    ),
    shape(
        "masstransit",
        &[
            form(
                "an envelope",
                &[Media("application/vnd.masstransit+json")],
                &[There(MT_ORIGINAL)],
                &[Same(&["body:/messageId", "property:message_id"])],
                &[One("body:/message")],
            ),
            form(
                "an envelope that was scheduled again",
                &[Media("application/vnd.masstransit+json"), There(MT_ORIGINAL)],
                &[],
                &[Same(MT_ORIGINAL)],
                &[One("body:/message")],
            ),
        ],
    ),
    shape(
        "nservicebus",
        &[
            form(
                "headers",
                &[There(&["header:NServiceBus.MessageId"])],
                &[],
                &[One("header:NServiceBus.MessageId")],
                &[],
            ),
            form("headers in an attribute", &[There(&[NSB_SQS_ID])], &[], &[One(NSB_SQS_ID)], &[]),
            form(
                "headers in an envelope",
                &[There(&["body:/Headers/NServiceBus.MessageId"])],
                &[],
                &[One("body:/Headers/NServiceBus.MessageId")],
                &[One("body:/Body")],
            ),
        ],
    ),
    // Ids are per queue. `attemptsMade` and the times change while a job is tried.
    shape(
        "bullmq",
        &[form(
            "a relayed job",
            &[There(&["body:/queueName", "body:/queue"]), There(&["body:/name"]), There(&["body:/data"])],
            &[],
            &[First(&["body:/queueName", "body:/queue"]), Same(&["body:/opts/jobId", "body:/id"])],
            &[One("body:/name"), One("body:/data")],
        )],
    ),
];
